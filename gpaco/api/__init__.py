"""The public functions, one per file. Only this room knows all tasks."""
