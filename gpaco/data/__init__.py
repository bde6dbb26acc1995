"""From files to images and labels: readers, splits, long-tailed subsets, checks, views."""
