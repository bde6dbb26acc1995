"""The HTTP server of one model. Needs no torch of its own: an exported file is served without it."""
