"""Converts arguments and results to stored JSON and back; computes fingerprints and generates ids."""
