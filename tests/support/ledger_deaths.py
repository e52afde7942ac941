"""Tasks on record that do harm to their process, or try to."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time

from pydantic import BaseModel, model_validator

from horsies import TaskError, TaskResult
from tests.support.ledger_pen import on_record


def segfault() -> TaskResult[None, TaskError]:
    with on_record():
        ctypes.string_at(0)
    return TaskResult(ok=None)


def leave(status: int) -> TaskResult[None, TaskError]:
    with on_record():
        os._exit(status)


def kill_self() -> TaskResult[None, TaskError]:
    with on_record():
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


def stop_self(seconds: float = 60.0) -> TaskResult[None, TaskError]:
    """Stand still, beats and all."""
    with on_record():
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(seconds)
    return TaskResult(ok=None)


def die_if(*, told: bool) -> TaskResult[None, TaskError]:
    """Short, and now and then deadly."""
    with on_record():
        if told:
            os._exit(9)
    return TaskResult(ok=None)


def exit_by_exception(status: int) -> TaskResult[None, TaskError]:
    with on_record():
        sys.exit(status)


def interrupt() -> TaskResult[None, TaskError]:
    with on_record():
        raise KeyboardInterrupt


def eat_memory() -> TaskResult[int, TaskError]:
    with on_record():
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
        try:
            return TaskResult(ok=len(bytearray(1 << 31)))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def hang_up() -> TaskResult[None, TaskError]:
    """Close the line to the worker for good."""
    with on_record():
        line: int = json.loads(sys.argv[1])["channel_fd"]
        socket.socket(fileno=os.dup(line)).shutdown(socket.SHUT_RDWR)
        time.sleep(60)
    return TaskResult(ok=None)


def burn(seconds: float) -> TaskResult[None, TaskError]:
    """Hold the interpreter in C code that uses the CPU all the time."""
    with on_record():
        library = ctypes.PyDLL(None)
        base = ctypes.create_string_buffer(1 << 20)
        until = time.monotonic() + seconds
        before = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # no other thread runs before this one waits
        while time.monotonic() < until:
            library.memset(base, 1, len(base))
        sys.setswitchinterval(before)
    return TaskResult(ok=None)


class Deadly(BaseModel):
    """An argument whose decoding ends the process, in children only."""

    text: str

    @model_validator(mode="after")
    def _strike(self) -> Deadly:
        if os.environ.get("HORSIES_CHILD_PROCESS"):
            os._exit(66)
        return self


def swallow(deadly: Deadly) -> TaskResult[str, TaskError]:
    return TaskResult(ok=deadly.text)
