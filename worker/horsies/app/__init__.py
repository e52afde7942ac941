"""The application: its settings, its tasks, and its way to the database."""

from horsies.app.application import Horsies
from horsies.app.hooks import ChildProcessStartHook

__all__ = ["ChildProcessStartHook", "Horsies"]
