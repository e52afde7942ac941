"""Registration of recovery hooks."""

from __future__ import annotations

from typing import Any

import pytest

from horsies import ConfigurationError, ErrorCode, Horsies, RecoveredWorkers, Recovery, RecoveryContext


def decide(context: RecoveryContext) -> Recovery | None:
    return Recovery.skip() if context.dry_run else None


async def log_interruption(_context: RecoveryContext) -> None: ...
def count(_recovered: RecoveredWorkers) -> None: ...
def takes_nothing() -> None: ...
def takes_two(_context: RecoveryContext, _more: int) -> None: ...


def test_registration_works_as_a_decorator() -> None:
    app = Horsies()
    assert app.on_recovery(decide) is decide
    assert app.on_interrupted(log_interruption) is log_interruption
    assert app.on_workers_recovered(count) is count


def test_hooks_are_kept_in_order_without_duplicates() -> None:
    app = Horsies()
    for hook in (decide, log_interruption, decide):
        app.on_interrupted(hook)
    assert [hook.function for hook in app.recovery_hooks.interrupted] == [decide, log_interruption]


@pytest.mark.parametrize("hook", [takes_nothing, takes_two, "decide", None])
@pytest.mark.parametrize("register", ["on_recovery", "on_interrupted", "on_workers_recovered"])
def test_invalid_hook_raises_at_its_registration(register: str, hook: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        getattr(Horsies(), register)(hook)
    assert raised.value.code is ErrorCode.CONFIG_INVALID_CHILD_HOOK
    assert raised.value.location is not None
    assert raised.value.location.file == __file__
