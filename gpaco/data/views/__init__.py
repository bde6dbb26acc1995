"""Views: random and fixed transforms of images."""
