"""The tasks: classification and segmentation."""
