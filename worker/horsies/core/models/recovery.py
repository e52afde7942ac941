"""Alias path of the settings of recovery."""

from horsies.model.settings import RecoveryConfig, RetentionConfig

__all__ = ["RecoveryConfig", "RetentionConfig"]
