"""Task list, task detail and the attempt chart."""
