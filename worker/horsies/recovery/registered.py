"""The functions that an app wants asked or told when work is recovered."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from horsies.errors import ConfigurationError, ErrorCode, SourceLocation
from horsies.model.recovery.answers import RecoveredWorkers, Recovery, RecoveryContext
from horsies.sync import Bridge

RecoveryHook: TypeAlias = Callable[[RecoveryContext], Recovery | Awaitable[Recovery | None] | None]
InterruptedHook: TypeAlias = Callable[[RecoveryContext], object]
WorkersRecoveredHook: TypeAlias = Callable[[RecoveredWorkers], object]

H = TypeVar("H", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A function, and the event loop that its coroutines run on for as long as the app lives.

    One each: a coroutine that blocks its loop blocks itself alone, and what one has connected stays on its loop.
    """

    function: Callable[..., object]
    loop: Bridge = field(default_factory=Bridge)


class HookList:
    """Functions of one argument, each once, in the order of registration."""

    def __init__(self) -> None:
        self._hooks: list[Registered] = []

    def __iter__(self) -> Iterator[Registered]:
        return iter(tuple(self._hooks))

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: H) -> H:
        if fault := _fault(hook):
            raise ConfigurationError(
                fault,
                code=ErrorCode.CONFIG_INVALID_CHILD_HOOK,
                hint="give a function of one argument, plain or async",
                location=SourceLocation.of_caller(),
            )
        if hook not in [each.function for each in self._hooks]:
            self._hooks.append(Registered(function=hook))
        return hook


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryHooks:
    """What one app has registered."""

    recovery: HookList = field(default_factory=HookList)
    interrupted: HookList = field(default_factory=HookList)
    workers_recovered: HookList = field(default_factory=HookList)


def _fault(hook: object) -> str | None:
    if not callable(hook):
        return f"a recovery hook must be a function, got {type(hook).__qualname__}"
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        return "a recovery hook is called with one argument"
    except ValueError:
        return None  # written in C, and silent about its parameters
    return None
