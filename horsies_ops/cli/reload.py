"""`horsies worker --reload`: watches the code, and replaces the worker when it changes.

The reloader imports no code of the app. It runs the worker in a process of its own and starts another one after a
change. Only when the new worker is ready does the old one stop, after its running tasks. A new worker that fails to
start prints why, and the old one keeps running.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from horsies.engine.events import Event, WorkerStarted
from horsies.engine.worker import Worker
from horsies.errors import ExitCode
from horsies_ops.cli.options import RELOADER_VARIABLE

POLL_INTERVAL_S: Final = 0.25
MAX_SCAN_SHARE: Final = 0.1
"""Largest share of a CPU that the reloader uses for scanning; a large folder is scanned less often."""
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

logger = logging.getLogger("horsies.worker")


# Watching files


class CodeWatcher:
    """Finds changed files by their modification times: `.py` files below a folder, and single files elsewhere."""

    def __init__(self, folder: Path, files: Iterable[Path] = ()) -> None:
        self._folder = folder
        self._files = frozenset(files)
        self._seen = self._scan()
        self._found: set[Path] = set()
        """Changes that `poll` has not returned yet."""
        self._next_scan_at = 0.0

    def add_files(self, files: Iterable[Path]) -> None:
        """Watch these files too; a change since the last scan of a file that is already watched is not missed."""
        added = frozenset(files)
        self._files |= added
        self._seen = _states(added) | self._seen

    def changes(self) -> set[Path]:
        """Return the files that were written, created or deleted since the last call."""
        before, self._seen = self._seen, self._scan()
        return {path for path in before.keys() | self._seen.keys() if before.get(path) != self._seen.get(path)}

    def poll(self) -> set[Path]:
        """Return the changes once an editor, which may write several files, has written no more between two polls.

        Empty if there are none. Scans only if a scan is due, so that a large folder is scanned less often.
        """
        if time.monotonic() < self._next_scan_at:
            return set()
        cpu_before_s = time.process_time()
        newest = self.changes()
        self._found |= newest
        if newest:
            return set()
        if not self._found:
            scan_s = time.process_time() - cpu_before_s
            self._next_scan_at = time.monotonic() + scan_s * (1 / MAX_SCAN_SHARE - 1)
        found, self._found = self._found, set()
        return found

    def _scan(self) -> dict[Path, tuple[int, int]]:
        return _states((*_python_files(self._folder), *self._files))


def _states(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    states: dict[Path, tuple[int, int]] = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        states[path] = (status.st_mtime_ns, status.st_size)
    return states


def _python_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not (name.startswith(".") or name in SKIPPED_FOLDERS)]
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        yield from (Path(parent, name) for name in files if name.endswith(".py"))


def module_files() -> list[str]:
    """Return the files of all imported modules that are neither installed packages nor part of horsies."""
    libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    own = ("horsies", "horsies_ops")
    files = {
        file
        for name, module in tuple(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and name.partition(".")[0] not in own
    }
    return sorted(file for file in files if file.endswith(".py") and not file.startswith(libraries))


# In the process of the worker


@dataclass(frozen=True, slots=True)
class ReloaderLink:
    """The channel of a worker to the reloader that started it."""

    channel: socket.socket
    is_first: bool
    """Whether the reloader has started no worker before."""

    @classmethod
    def from_environment(cls) -> ReloaderLink | None:
        """Return the channel if a reloader started this process; its children do not inherit it."""
        value = os.environ.pop(RELOADER_VARIABLE, None)
        if value is None:
            return None
        descriptor, _, started = value.partition(" ")
        channel = socket.socket(fileno=int(descriptor))
        channel.set_inheritable(False)
        return cls(channel, is_first=started == "0")

    def attach(self, worker: Worker) -> None:
        """Send the paths of loaded modules to the reloader once the worker is ready; stop it if the reloader exits."""
        loop = asyncio.get_running_loop()

        def on_event(event: Event) -> None:
            if isinstance(event, WorkerStarted):
                self.channel.sendall(json.dumps(module_files()).encode() + b"\n")

        def on_reloader_gone() -> None:
            loop.remove_reader(self.channel)
            if not worker.is_stopping:  # a second call would interrupt the tasks of a draining worker
                worker.stop()

        worker.add_listener(on_event)
        loop.add_reader(self.channel, on_reloader_gone)


# In the reloader


class WorkerProcess:
    """A worker started by the reloader, with the same command line."""

    def __init__(self, *, started_before: int) -> None:
        self._channel, worker_end = socket.socketpair()
        with worker_end:
            self._process = subprocess.Popen(
                # -P keeps user modules in the working directory from shadowing the standard library.
                [sys.executable, "-P", "-m", "horsies_ops.cli", *sys.argv[1:]],
                stdin=subprocess.DEVNULL,
                env={**os.environ, RELOADER_VARIABLE: f"{worker_end.fileno()} {started_before}"},
                pass_fds=(worker_end.fileno(),),
                # Keeps Ctrl-C from the worker: if the worker is already stopping, a second signal would kill its tasks.
                process_group=0,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def loaded_files(self) -> list[Path] | None:
        """Return the files of its modules; None until the worker is ready."""
        if not select.select([self._channel], [], [], 0)[0]:
            return None
        with self._channel.makefile() as reports:
            line = reports.readline()
        return [Path(file) for file in json.loads(line)] if line else None

    def stop(self) -> None:
        """Stop after its running tasks; a second call stops it immediately."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._process.wait()


@dataclass(slots=True)
class Reloader:
    """Keeps one worker running with the newest code that starts."""

    watcher: CodeWatcher
    settings_file: Path
    _starting: WorkerProcess | None = None
    _current: WorkerProcess | None = None
    _stopping: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    _started: int = 0

    def run(self) -> int:
        """Run until interrupted; returns the highest exit code of the workers that stopped last."""
        try:
            self._start()
            while True:
                self._check_workers()
                time.sleep(POLL_INTERVAL_S)
                if changes := self.watcher.poll():
                    self._on_changes(changes)
        except KeyboardInterrupt:
            return self._stop_all()

    def _start(self) -> None:
        self._starting = WorkerProcess(started_before=self._started)
        self._started += 1

    def _on_changes(self, changes: Collection[Path]) -> None:
        if self.settings_file in changes:
            logger.warning("%s changed: stop the worker and start it again to apply it", self.settings_file.name)
        code = sorted(path for path in changes if path != self.settings_file)
        if not code:
            return
        shown = ", ".join(map(_relative, code[:3])) + (f" and {len(code) - 3} more" if len(code) > 3 else "")
        logger.info("code changed: %s", shown)
        self._check_workers()  # a worker that has just become ready replaces the current one first
        if self._starting is not None and self._current is not None:
            self._retire(self._starting)
        elif self._starting is not None:
            self._current = self._starting  # keep it: there is no other worker if the newest code cannot be imported
        self._start()

    def _check_workers(self) -> None:
        self._stopping = [worker for worker in self._stopping if worker.exit_code is None]
        if self._starting is not None:
            self._check_new_worker(self._starting)
        if self._current is not None and self._current.exit_code is not None:
            logger.error("the worker exited with code %d; waiting for a code change", self._current.exit_code)
            self._current = None

    def _check_new_worker(self, new: WorkerProcess) -> None:
        if (files := new.loaded_files()) is not None:
            self.watcher.add_files(files)
            if self._current is not None:
                logger.info("reloaded; the worker with the old code stops after its running tasks")
                self._retire(self._current)
            self._current, self._starting = new, None
        elif new.exit_code is not None:
            old = "the old code keeps running" if self._current is not None else "no worker is running"
            logger.warning("%s; waiting for a code change", old)
            self._starting = None

    def _retire(self, worker: WorkerProcess) -> None:
        worker.stop()
        self._stopping.append(worker)

    def _stop_all(self) -> int:
        code = ExitCode.DONE
        for worker in filter(None, (self._starting, self._current)):
            self._retire(worker)
        while running := [worker for worker in self._stopping if worker.exit_code is None]:
            try:
                code = max(worker.wait() for worker in running)
            except KeyboardInterrupt:
                for worker in running:
                    worker.stop()
        return code


def _relative(path: Path) -> str:
    folder = Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
