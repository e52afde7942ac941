"""Tasks that do to their process whatever can be done to one."""

# ruff: noqa: T201  # what tasks print is part of what is tested

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from pydantic import BaseModel, model_serializer, model_validator

from horsies import AppConfig, Horsies, TaskError, TaskResult, current_task

app = Horsies(AppConfig())


class UnencodableValue:
    """A value that fits `object` and has no JSON form."""


@app.task("noop")
def noop() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("echo")
def echo(text: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text)


@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())


@app.task("who")
def who() -> TaskResult[str, TaskError]:
    task = current_task()
    assert task is not None
    return TaskResult(ok=f"{task.task_name} {task.attempt} {task.possible_overlap} {task.flags}")


@app.task("wait_for")
def wait_for(file: str) -> TaskResult[int, TaskError]:
    """Until the file is there."""
    while not Path(file).exists():
        time.sleep(0.01)
    return TaskResult(ok=os.getpid())


@app.task("segfault")
def segfault() -> TaskResult[None, TaskError]:
    ctypes.string_at(0)
    return TaskResult(ok=None)


@app.task("leave")
def leave(status: int) -> TaskResult[None, TaskError]:
    os._exit(status)


@app.task("close_line")
def close_line() -> TaskResult[None, TaskError]:
    os.close(_line())
    time.sleep(60)
    return TaskResult(ok=None)


@app.task("hang_up")
def hang_up() -> TaskResult[None, TaskError]:
    """Close the line for good, also for the thread that reads it."""
    socket.socket(fileno=os.dup(_line())).shutdown(socket.SHUT_RDWR)
    time.sleep(60)
    return TaskResult(ok=None)


@app.task("talk_rubbish")
def talk_rubbish() -> TaskResult[None, TaskError]:
    os.write(_line(), b"\0\0\0\4rubb")
    time.sleep(60)
    return TaskResult(ok=None)


@app.task("eat_memory")
def eat_memory() -> TaskResult[int, TaskError]:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return TaskResult(ok=len(bytearray(1 << 31)))


@app.task("eat_memory_mapped", exception_mapper={MemoryError: "TOO_MUCH"})
def eat_memory_mapped() -> TaskResult[int, TaskError]:
    raise MemoryError


@app.task("exit")
def exit_() -> TaskResult[None, TaskError]:
    sys.exit(3)


@app.task("interrupt")
def interrupt() -> TaskResult[None, TaskError]:
    raise KeyboardInterrupt


@app.task("recurse")
def recurse(depth: int) -> TaskResult[None, TaskError]:
    return recurse(depth + 1)


@app.task("unencodable")
def unencodable() -> TaskResult[object, TaskError]:
    return TaskResult(ok=UnencodableValue())


@app.task("mistyped")
def mistyped() -> TaskResult[int, TaskError]:
    return TaskResult(ok="no number")  # pyright: ignore[reportReturnType]


KEPT: list[bytes] = []


@app.task("grow")
def grow(megabytes: int) -> TaskResult[None, TaskError]:
    KEPT.append(b"x" * (megabytes << 20))
    return TaskResult(ok=None)


@app.task("huge")
def huge(megabytes: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok="x" * (megabytes << 20))


@app.task("die_after")
def die_after() -> TaskResult[str, TaskError]:
    """End well, and die before anything else can happen."""
    main = threading.main_thread()

    def strike() -> None:
        while current_task_has_not_ended(main):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=strike, daemon=True).start()
    return TaskResult(ok="done")


def current_task_has_not_ended(main: threading.Thread) -> bool:
    """Whether the main thread is anywhere but waiting for the next task."""
    frame = sys._current_frames().get(main.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "wait" and frame.f_code.co_filename.endswith("runner.py"):
            return False
        frame = frame.f_back
    return True


@app.task("leave_someone_behind")
def leave_someone_behind() -> TaskResult[int, TaskError]:
    """Start a program that holds every line open, say which, then wait to be killed."""
    os.set_inheritable(_line(), True)
    other = subprocess.Popen(["sleep", "60"], close_fds=False)
    print(other.pid)
    time.sleep(60)
    return TaskResult(ok=other.pid)


@app.task("burn")
def burn(seconds: float) -> TaskResult[None, TaskError]:
    """Hold the interpreter in C code that uses the CPU all the time."""
    library = ctypes.PyDLL(None)
    base = ctypes.create_string_buffer(1 << 20)
    until = time.monotonic() + seconds
    sys.setswitchinterval(1000)  # no other thread runs before this one waits
    while time.monotonic() < until:
        library.memset(base, 1, len(base))
    return TaskResult(ok=None)


@app.task("talk")
def talk() -> TaskResult[None, TaskError]:
    print("first\nsecond", end="")
    print("oh", file=sys.stderr)
    os.write(1, b"from C\n")
    return TaskResult(ok=None)


@app.task("fork")
def fork() -> TaskResult[int, TaskError]:
    """A forked process that prints and ends must not be heard on the line."""
    forked = os.fork()
    if not forked:
        print("from the fork", flush=True)
        os._exit(0)
    _, status = os.waitpid(forked, 0)
    return TaskResult(ok=status)


@app.task("jot")
def jot(file: str) -> TaskResult[None, TaskError]:
    """Write a line for each run."""
    _write_down(file)
    return TaskResult(ok=None)


@app.task("jot_async")
async def jot_async(file: str) -> TaskResult[None, TaskError]:
    _write_down(file)
    return TaskResult(ok=None)


@app.task("fork_out")
def fork_out(way: str) -> TaskResult[int, TaskError]:
    """Have a forked copy leave this function in some way; with which status it then ended."""
    if forked := os.fork():
        return TaskResult(ok=_status_of(forked))
    return _gone(way)


@app.task("fork_out_async")
async def fork_out_async(way: str) -> TaskResult[int, TaskError]:
    if forked := os.fork():
        return TaskResult(ok=_status_of(forked))
    if way == "wait":
        await asyncio.sleep(0)
    return _gone(way)


@app.task("fork_out_on_the_side")
async def fork_out_on_the_side(way: str) -> TaskResult[int, TaskError]:
    """The same in a task that a coroutine has made."""

    async def fork_and_go() -> int:
        if forked := os.fork():
            return _status_of(forked)
        _gone(way)
        return 0

    return TaskResult(ok=await asyncio.create_task(fork_and_go()))


@app.task("fork_in_thread")
def fork_in_thread(way: str) -> TaskResult[int, TaskError]:
    """Have a process forked by a thread of a pool, and say how many lines to the worker it held."""
    handler = logging.StreamHandler(sys.stderr)
    with ThreadPoolExecutor(1) as threads:
        return TaskResult(ok=threads.submit(FORKING[way], _lines_held(), handler).result())


@app.task("fork_in_thread_async")
async def fork_in_thread_async(way: str) -> TaskResult[int, TaskError]:
    handler = logging.StreamHandler(sys.stderr)
    return TaskResult(ok=await asyncio.to_thread(FORKING[way], _lines_held(), handler))


def _fork_by_hand(lines: set[str], handler: logging.Handler) -> int:
    if forked := os.fork():
        return _status_of(forked)
    os._exit(_speak_as_a_copy(lines, handler))


def _fork_a_process(lines: set[str], handler: logging.Handler) -> int:
    forking = get_context("fork")
    # Not by its exit status: after a fork from a thread of a pool, Python itself makes that 1.
    answer: SimpleQueue[int] = forking.SimpleQueue()
    process = forking.Process(target=lambda: answer.put(_speak_as_a_copy(lines, handler)))
    process.start()
    process.join()
    return answer.get()


def _fork_a_pool(lines: set[str], handler: logging.Handler) -> int:
    COPIED.append(handler)
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as processes:
        return processes.submit(_speak_with_what_was_copied, lines).result()


COPIED: list[logging.Handler] = []
FORKING = {"fork": _fork_by_hand, "process": _fork_a_process, "pool": _fork_a_pool}


def _speak_with_what_was_copied(lines: set[str]) -> int:
    return _speak_as_a_copy(lines, COPIED[-1])


def _speak_as_a_copy(lines: set[str], handler: logging.Handler) -> int:
    """Print and log, and count the lines to the worker that are open here."""
    print("from the copy", flush=True)
    handler.handle(logging.LogRecord("copy", logging.INFO, __file__, 1, "logged there", None, None))
    return len(lines & set(_descriptors()))


def _lines_held() -> set[str]:
    """Both lines to the worker, as the kernel names them."""
    birth = json.loads(sys.argv[1])
    return {str(Path(f"/proc/self/fd/{birth[name]}").readlink()) for name in ("channel_fd", "watchdog_fd")}


def _descriptors() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists
            yield str(descriptor.readlink())


def _gone(way: str) -> TaskResult[int, TaskError]:
    if way == "raise":
        raise ValueError(way)
    if way == "exit":
        sys.exit(3)
    return TaskResult(ok=-1)


def _status_of(forked: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])


def _write_down(file: str) -> None:
    with Path(file).open("ab", buffering=0) as lines:
        lines.write(b"here\n")


class UnexpectedBaseException(BaseException):
    """What no handler of errors expects."""


class FailsToDecode(BaseModel):
    """Can neither be read nor written in children."""

    word: str

    @model_validator(mode="after")
    def _strike(self) -> FailsToDecode:
        if self.word == "in":
            raise UnexpectedBaseException
        return self

    @model_serializer
    def _strike_back(self) -> dict[str, str]:
        raise UnexpectedBaseException


@app.task("read_cursed")
def read_cursed(cursed: FailsToDecode) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("read_cursed_async")
async def read_cursed_async(cursed: FailsToDecode) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("give_cursed")
def give_cursed() -> TaskResult[FailsToDecode, TaskError]:
    return TaskResult(ok=FailsToDecode(word="out"))


@app.task("give_cursed_async")
async def give_cursed_async() -> TaskResult[FailsToDecode, TaskError]:
    return TaskResult(ok=FailsToDecode(word="out"))


FATES: dict[str, type[BaseException]] = {
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "cancel": asyncio.CancelledError,
    "generator": GeneratorExit,
    "recursion": RecursionError,
    "memory": MemoryError,
}


class RaisesOnValidation(BaseModel):
    """Raises what it is told to while it is checked."""

    fate: str

    @model_validator(mode="after")
    def _meet(self) -> RaisesOnValidation:
        raise FATES[self.fate]


class RaisesOnDump(BaseModel):
    """Raises it while it is written."""

    fate: str

    @model_serializer
    def _meet(self) -> dict[str, str]:
        raise FATES[self.fate]


@app.task("check_fate")
def check_fate(fate: str) -> TaskResult[RaisesOnValidation, TaskError]:
    return TaskResult[Any, TaskError](ok={"fate": fate})


@app.task("check_fate_async")
async def check_fate_async(fate: str) -> TaskResult[RaisesOnValidation, TaskError]:
    return TaskResult[Any, TaskError](ok={"fate": fate})


@app.task("write_fate")
def write_fate(fate: str) -> TaskResult[RaisesOnDump, TaskError]:
    return TaskResult(ok=RaisesOnDump(fate=fate))


@app.task("write_fate_async")
async def write_fate_async(fate: str) -> TaskResult[RaisesOnDump, TaskError]:
    return TaskResult(ok=RaisesOnDump(fate=fate))


class RaisesOnStr(SystemExit):
    """Answers the question what it says by saying it again."""

    def __str__(self) -> str:
        raise RaisesOnStr


@app.task("be_rude")
def be_rude() -> TaskResult[None, TaskError]:
    raise RaisesOnStr


@app.task("nap")
async def nap(seconds: float) -> TaskResult[int, TaskError]:
    await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())


MEETING: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@app.task("meet")
async def meet(me: str, other: str) -> TaskResult[str, TaskError]:
    """Ends only if the other one runs at the same time."""
    MEETING[me].set()
    await MEETING[other].wait()
    return TaskResult(ok=me)


@app.task("exit_on_the_side")
async def exit_on_the_side() -> TaskResult[str, TaskError]:
    async def leave_loop() -> None:
        sys.exit(4)

    try:
        await asyncio.create_task(leave_loop())
    except SystemExit:
        return TaskResult(ok="still here")
    return TaskResult(ok="not raised")


def _line() -> int:
    """The descriptor of the line to the worker."""
    return json.loads(sys.argv[1])["channel_fd"]
