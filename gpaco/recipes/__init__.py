"""Every setting of a run, read from TOML and written back."""
