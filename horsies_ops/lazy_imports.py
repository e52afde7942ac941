"""Modules imported on first use: a single command needs few of the modules behind `Ops`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Placeholder for a module that is imported when an attribute is first read."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
