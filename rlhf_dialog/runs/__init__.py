"""A run from its YAML to its folder: begin, resume, checkpoint, save, stop."""
