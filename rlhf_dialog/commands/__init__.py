"""What people type: one file a command; arguments, help, exit codes."""
