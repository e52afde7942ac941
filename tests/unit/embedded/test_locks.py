from __future__ import annotations

import os
from pathlib import Path

from horsies.embedded.layout import SharedLock, exclusive_lock, is_either_locked, is_locked


def test_lock_is_held_until_the_last_share_is_closed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    first, second = SharedLock(lock), SharedLock(lock)
    first.close()
    assert is_locked(lock)
    second.close()
    assert not is_locked(lock)


def test_closing_twice_does_not_close_a_reused_descriptor(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    first = SharedLock(lock)
    first.close()
    second = SharedLock(lock)
    first.close()
    assert is_locked(lock)
    second.close()


def test_checking_a_lock_creates_no_file(tmp_path: Path) -> None:
    assert not is_either_locked(tmp_path / "gate", tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []


def test_held_start_lock_counts_as_locked(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "gate"):
        assert is_either_locked(tmp_path / "gate", tmp_path / "lock")
    assert not is_either_locked(tmp_path / "gate", tmp_path / "lock")


def test_exclusive_lock_is_released_despite_inherited_descriptors(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "lock") as lock:
        copy = os.dup(lock)
    assert not is_locked(tmp_path / "lock")
    os.close(copy)
