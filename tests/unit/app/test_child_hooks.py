"""Hooks that run in each child of a worker."""

from __future__ import annotations

from typing import Any

import pytest

from horsies import ConfigurationError, ErrorCode, Horsies


def connect() -> None: ...
def warm_up(_size: int = 3, **_options: int) -> None: ...
async def wait() -> None: ...
def needs_a_size(_size: int) -> None: ...
def needs_a_named_size(*, _size: int) -> None: ...


def test_hooks_are_kept_in_order_without_duplicates() -> None:
    app = Horsies()
    for hook in (connect, warm_up, connect):
        app.on_child_process_start(hook)
    assert list(app.child_hooks) == [connect, warm_up]


def test_registration_works_as_a_decorator() -> None:
    assert Horsies().on_child_process_start(connect) is connect


@pytest.mark.parametrize("hook", [wait, needs_a_size, needs_a_named_size, "connect", None])
def test_invalid_hook_raises_at_its_registration(hook: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Horsies().on_child_process_start(hook)
    assert raised.value.code is ErrorCode.CONFIG_INVALID_CHILD_HOOK
    assert raised.value.location is not None
    assert raised.value.location.file == __file__
