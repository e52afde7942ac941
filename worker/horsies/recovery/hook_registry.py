"""Registration of recovery hooks; `horsies.recovery.hooks` calls them.

Every child process loads this module with the app, but no child calls a hook: it does not import asyncio.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from horsies.errors import ConfigurationError, ErrorCode, SourceLocation
from horsies.model.recovery.decision import RecoveredWorkers, RecoveryContext
from horsies.model.retry import Recovery
from horsies.sync import Bridge

RecoveryHook: TypeAlias = Callable[[RecoveryContext], Recovery | Awaitable[Recovery | None] | None]
InterruptedHook: TypeAlias = Callable[[RecoveryContext], object]
WorkersRecoveredHook: TypeAlias = Callable[[RecoveredWorkers], object]

H = TypeVar("H", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredHook:
    """A hook and the event loop of its coroutines, which lives as long as the app.

    Each hook has its own loop: a coroutine that blocks it affects no other hook, and connections stay on their loop.
    """

    function: Callable[..., object]
    loop: Bridge = field(default_factory=Bridge)


class HookList:
    """Registered hooks, without duplicates, in the order of registration."""

    def __init__(self) -> None:
        self._hooks: list[RegisteredHook] = []

    def __iter__(self) -> Iterator[RegisteredHook]:
        return iter(tuple(self._hooks))

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: H) -> H:
        if fault := _signature_error(hook):
            raise ConfigurationError(
                fault,
                code=ErrorCode.CONFIG_INVALID_CHILD_HOOK,
                hint="register a function with one parameter, sync or async",
                location=SourceLocation.of_caller(),
            )
        if hook not in [registered.function for registered in self._hooks]:
            self._hooks.append(RegisteredHook(function=hook))
        return hook


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryHooks:
    """All hooks of one app."""

    recovery: HookList = field(default_factory=HookList)
    interrupted: HookList = field(default_factory=HookList)
    workers_recovered: HookList = field(default_factory=HookList)


def _signature_error(hook: object) -> str | None:
    if not callable(hook):
        return f"a recovery hook must be a function, got {type(hook).__qualname__}"
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        return "a recovery hook must accept exactly one argument"
    except ValueError:
        return None  # functions written in C may have no signature
    return None
