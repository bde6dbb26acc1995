"""The HTTP server of one model. It does not import torch itself, so an exported file is served without it."""
