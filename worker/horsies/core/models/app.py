"""Alias path of the application's settings."""

from horsies.model.settings import AppConfig, PayloadPolicy

__all__ = ["AppConfig", "PayloadPolicy"]
