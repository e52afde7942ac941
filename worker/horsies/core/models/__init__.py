"""Alias paths of the models."""
