"""Every key and its errors; names -> classes."""
