"""Registration of hooks that run in each child process."""

from __future__ import annotations

from typing import Any

import pytest

from horsies import ConfigurationError, ErrorCode, Horsies


def connect() -> None: ...
def warm_up(_size: int = 3, **_options: int) -> None: ...
async def wait() -> None: ...
def requires_argument(_size: int) -> None: ...
def requires_keyword(*, _size: int) -> None: ...


def test_hooks_are_kept_in_order_without_duplicates() -> None:
    app = Horsies()
    for hook in (connect, warm_up, connect):
        app.on_child_process_start(hook)
    assert list(app.child_hooks) == [connect, warm_up]


def test_registration_works_as_a_decorator() -> None:
    assert Horsies().on_child_process_start(connect) is connect


@pytest.mark.parametrize("hook", [wait, requires_argument, requires_keyword, "connect", None])
def test_invalid_hook_raises_at_its_registration(hook: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Horsies().on_child_process_start(hook)
    assert raised.value.code is ErrorCode.CONFIG_INVALID_CHILD_HOOK
    assert raised.value.location is not None
    assert raised.value.location.file == __file__
