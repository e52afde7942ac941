from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from horsies.embedded import ServerHandle


def _lease(leave: Callable[[], None]) -> ServerHandle:
    return ServerHandle(url="postgresql:///", folder=Path("/nowhere"), started=True, on_release=leave)


def test_handle_is_released_once() -> None:
    left: list[str] = []
    lease = _lease(lambda: left.append("left"))
    lease.release()
    lease.release()
    assert left == ["left"]


@pytest.mark.parametrize("interruption", [SystemExit, KeyboardInterrupt])
def test_interrupted_release_can_be_completed(interruption: type[BaseException]) -> None:
    interruptions = [interruption()]
    left: list[str] = []

    def leave() -> None:
        if interruptions:
            raise interruptions.pop()
        left.append("left")

    lease = _lease(leave)
    with pytest.raises(interruption):
        lease.release()
    lease.release()
    assert left == ["left"]


def test_release_in_a_signal_handler_runs_once() -> None:
    left: list[str] = []

    def leave() -> None:
        lease.release()
        left.append("left")

    lease = _lease(leave)
    lease.release()
    assert left == ["left"]


def test_failed_release_is_not_repeated() -> None:
    tried: list[str] = []

    def leave() -> None:
        tried.append("tried")
        raise PermissionError

    lease = _lease(leave)
    with pytest.raises(PermissionError):
        lease.release()
    lease.release()
    assert tried == ["tried"]
