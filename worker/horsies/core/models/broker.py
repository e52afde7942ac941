"""Alias path of the database's settings."""

from horsies.model.settings import PostgresConfig

__all__ = ["PostgresConfig"]
