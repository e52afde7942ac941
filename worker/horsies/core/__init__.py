"""Documented import paths for names that are defined elsewhere."""
