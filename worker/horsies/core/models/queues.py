"""Alias path of the queues' settings."""

from horsies.model.settings import CustomQueueConfig, QueueMode

__all__ = ["CustomQueueConfig", "QueueMode"]
