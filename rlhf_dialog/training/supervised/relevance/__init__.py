"""The model that says which reply fits its prompt: its pairs, its training, its report."""
