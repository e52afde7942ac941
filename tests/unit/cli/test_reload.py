"""Which files `horsies worker --reload` watches."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from horsies_ops.cli.reload import CodeWatcher, ReloaderLink, module_files


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_written_created_and_deleted_code_is_found_once(tmp_path: Path) -> None:
    old, gone = write(tmp_path / "shop/tasks.py"), write(tmp_path / "gone.py")
    watcher = CodeWatcher(tmp_path)
    assert watcher.changes() == set()
    new = write(tmp_path / "shop/new/more.py")
    old.write_text("x = 1")
    gone.unlink()
    assert watcher.changes() == {old, gone, new}
    assert watcher.changes() == set()


def test_change_that_keeps_the_size_is_found(tmp_path: Path) -> None:
    file = write(tmp_path / "tasks.py", "x = 1")
    watcher = CodeWatcher(tmp_path)
    file.write_text("x = 2")
    os.utime(file, (1, 1))
    assert watcher.changes() == {file}


def test_other_files_and_installed_packages_are_not_watched(tmp_path: Path) -> None:
    write(tmp_path / "env/pyvenv.cfg")
    watcher = CodeWatcher(tmp_path)
    for name in ("notes.txt", ".git/hook.py", "__pycache__/a.py", "node_modules/b.py", "env/lib/c.py"):
        write(tmp_path / name)
    assert watcher.changes() == set()


def test_loaded_files_outside_the_folder_are_watched(tmp_path: Path) -> None:
    inside, outside = write(tmp_path / "app/main.py"), write(tmp_path / "library/shared.py")
    watcher = CodeWatcher(tmp_path / "app")
    inside.write_text("changed before the worker was ready")
    watcher.add_files([inside, outside])
    assert watcher.changes() == {inside}
    outside.write_text("changed")
    assert watcher.changes() == {outside}


def test_poll_returns_changes_when_no_more_follow(tmp_path: Path) -> None:
    watcher = CodeWatcher(tmp_path)
    first = write(tmp_path / "first.py")
    assert watcher.poll() == set()
    second = write(tmp_path / "second.py")
    assert watcher.poll() == set()
    assert watcher.poll() == {first, second}
    assert watcher.poll() == set()


def test_poll_does_not_wait_for_the_next_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reloader checks its workers between polls, however long a scan of a large folder takes."""

    def fail(_seconds: float) -> None:
        pytest.fail("poll waits")

    for clock in ("monotonic", "process_time"):
        monkeypatch.setattr(f"horsies_ops.cli.reload.time.{clock}", itertools.count(1_000.0, 2.0).__next__)
    monkeypatch.setattr("horsies_ops.cli.reload.time.sleep", fail)
    watcher = CodeWatcher(tmp_path)
    assert watcher.poll() == set()  # takes 2 s of CPU, so the next scan is due 18 s later
    changed = write(tmp_path / "changed.py")
    found: list[set[Path]] = []
    while not found or found[-1] != {changed}:
        found.append(watcher.poll())
    assert len(found) in range(9, 12)


def test_files_of_modules_leave_out_libraries_and_horsies() -> None:
    files = module_files()
    assert __file__ in files
    assert not [file for file in files if "/site-packages/" in file or file == CodeWatcher.__module__]
    assert not [file for file in files if file.endswith(("/horsies/app.py", "/horsies_ops/cli/reload.py"))]


class StoppableWorker:
    """Counts how often it is stopped."""

    def __init__(self, *, is_stopping: bool) -> None:
        self.is_stopping = is_stopping
        self.stops = 0

    def add_listener(self, _listener: object) -> None: ...

    def stop(self) -> None:
        self.stops += 1


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_draining_worker_keeps_its_tasks_when_the_reloader_dies(is_stopping: bool) -> None:
    """A second stop would kill them."""
    worker: Any = StoppableWorker(is_stopping=is_stopping)
    reloader_end, worker_end = socket.socketpair()
    with worker_end:
        ReloaderLink(worker_end, is_first=True).attach(worker)
        reloader_end.close()
        await asyncio.sleep(0.05)
    assert worker.stops == (0 if is_stopping else 1)
