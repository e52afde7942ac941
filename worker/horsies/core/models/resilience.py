"""Alias path of the worker's resilience."""

from horsies.model.settings import WorkerResilienceConfig

__all__ = ["WorkerResilienceConfig"]
