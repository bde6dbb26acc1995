"""Offline pages: data in, one HTML file out. They refer to no host."""
