"""One process of a child: born with its lines to the worker, ended with its whole group, its death known at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from horsies.engine.spec import Birth

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from horsies.engine.spec import ChildSpec

_PROGRAM = "horsies.engine.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A started child, seen from its parent, and the ends of its lines that are ours.

    Start it from a thread that stays: for the kernel that thread is the parent whose end is the child's end.
    """

    pid: int
    line: socket.socket
    life: socket.socket
    """Closes when we end, which is then its end; and on it the child says why it leaves, if it knows."""
    facts: psutil.Process
    popen: subprocess.Popen[bytes]

    @classmethod
    def start(cls, spec: ChildSpec) -> Process:
        """Raises OSError where the system has no room for another process, or we none for its descriptors."""
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            line, channel = socket.socketpair()
            undo.callback(line.close)
            theirs.callback(channel.close)
            life, their_life = socket.socketpair()
            undo.callback(life.close)
            theirs.callback(their_life.close)
            popen = _popen(spec, channel_fd=channel.fileno(), life_fd=their_life.fileno())
            undo.callback(_undo, popen)
            for end in (line, life):
                end.setblocking(False)  # noqa: FBT003
            process = cls(pid=popen.pid, line=line, life=life, facts=psutil.Process(popen.pid), popen=popen)
            undo.pop_all()
        return process

    @property
    def output_fds(self) -> tuple[int, int]:
        """Where it writes past Python, and where its errors go."""
        assert self.popen.stdout is not None  # noqa: S101
        assert self.popen.stderr is not None  # noqa: S101
        return self.popen.stdout.fileno(), self.popen.stderr.fileno()

    def kill_group(self) -> None:
        """SIGKILL to the child and all it has started; until it is reaped, its number is nobody else's."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def last_word(self) -> int | None:
        """The exit status that it said it would leave with, if it said so."""
        try:
            word = self.life.recv(1)
        except OSError:
            return None
        return word[0] if word else None

    def cpu_s(self) -> float:
        """The CPU time it has used so far."""
        try:
            times = self.facts.cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system

    def rss_bytes(self) -> int:
        try:
            return self.facts.memory_info().rss
        except psutil.Error:
            return 0

    def close(self) -> None:
        """Let go of every line to a child that has been reaped."""
        # It was reaped behind the back of this object, which would look for it otherwise.
        self.popen.returncode = 0
        for stream in (self.popen.stdout, self.popen.stderr):
            assert stream is not None  # noqa: S101
            stream.close()
        self.line.close()
        self.life.close()


def call_at_end(process: Process, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    """Call `ended` on the loop when the process has ended; it is not reaped yet."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # a kernel without them, or none left for us
        call_from_thread(process.pid, loop, ended)
        return

    def at_end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        ended()

    loop.add_reader(descriptor, at_end)


def call_from_thread(pid: int, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    """The same where the kernel has no descriptors for processes: a thread waits for each."""

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        loop.call_soon_threadsafe(ended)

    threading.Thread(target=wait, name=f"horsies-wait-{pid}", daemon=True).start()


def _undo(popen: subprocess.Popen[bytes]) -> None:
    """End a process that nobody will supervise."""
    with popen:
        popen.kill()


def _popen(spec: ChildSpec, *, channel_fd: int, life_fd: int) -> subprocess.Popen[bytes]:
    birth = Birth(spec=spec, channel_fd=channel_fd, life_fd=life_fd, parent_pid=os.getpid())
    return subprocess.Popen(
        # -P: no module of the user's stands in for one of Python's before the app itself is imported.
        [sys.executable, "-P", "-m", _PROGRAM, birth.argument()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, **spec.environment, "HORSIES_CHILD_PROCESS": "1"},
        pass_fds=(channel_fd, life_fd),
        start_new_session=True,
    )
