"""What each task does in its own way."""
