"""Functions that an app wants called at certain moments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TypeAlias

from horsies.errors import ConfigurationError, ErrorCode, SourceLocation

ChildProcessStartHook: TypeAlias = Callable[[], None]


class ChildHooks:
    """Run once in each child of a worker, after its imports, in the order of registration; each function once."""

    def __init__(self) -> None:
        self._hooks: list[ChildProcessStartHook] = []

    def __iter__(self) -> Iterator[ChildProcessStartHook]:
        return iter(tuple(self._hooks))

    def add(self, hook: ChildProcessStartHook) -> ChildProcessStartHook:
        if fault := _fault(hook):
            raise ConfigurationError(
                fault,
                code=ErrorCode.CONFIG_INVALID_CHILD_HOOK,
                hint="give a plain function without parameters",
                location=SourceLocation.of_caller(),
            )
        if hook not in self._hooks:
            self._hooks.append(hook)
        return hook


def _fault(hook: object) -> str | None:
    if not callable(hook):
        return f"a child hook must be a function, got {type(hook).__qualname__}"
    if inspect.iscoroutinefunction(hook):
        return "a child hook must not be async"
    optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    parameters = inspect.signature(hook).parameters.values()
    required = [each for each in parameters if each.default is each.empty and each.kind not in optional]
    return "a child hook is called without arguments" if required else None
