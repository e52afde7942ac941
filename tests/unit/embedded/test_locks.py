from __future__ import annotations

import os
from pathlib import Path

from horsies.embedded.layout import SharedLock, exclusive_lock, is_either_locked, is_locked


def test_a_lock_is_held_until_the_last_share_is_closed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    first, second = SharedLock(lock), SharedLock(lock)
    first.close()
    assert is_locked(lock)
    second.close()
    assert not is_locked(lock)


def test_closing_a_share_again_leaves_the_next_file_of_that_number_open(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    first = SharedLock(lock)
    first.close()
    second = SharedLock(lock)
    first.close()
    assert is_locked(lock)
    second.close()


def test_looking_at_a_lock_creates_no_file(tmp_path: Path) -> None:
    assert not is_either_locked(tmp_path / "gate", tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_gate_counts_as_held(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "gate"):
        assert is_either_locked(tmp_path / "gate", tmp_path / "lock")
    assert not is_either_locked(tmp_path / "gate", tmp_path / "lock")


def test_an_exclusive_lock_ends_even_where_a_copy_of_it_lives_on(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "lock") as lock:
        copy = os.dup(lock)
    assert not is_locked(tmp_path / "lock")
    os.close(copy)
