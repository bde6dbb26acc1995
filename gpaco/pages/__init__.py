"""Offline pages: data in, one HTML file out, without references to any host."""
