"""Figures for Prometheus: what there is now, and what has happened since the exporter began to look."""
