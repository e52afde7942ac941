"""Alias path of the worker's resilience."""

from horsies.model.settings import WorkerResilienceConfig
from horsies.model.settings.recovery import INFRASTRUCTURE_RESILIENT_FLAG

__all__ = ["INFRASTRUCTURE_RESILIENT_FLAG", "WorkerResilienceConfig"]
