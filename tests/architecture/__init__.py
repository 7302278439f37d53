"""What the code may look like: checked by reading it, nothing is imported."""
