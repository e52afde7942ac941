"""Documented alias paths; everything here lives elsewhere."""
