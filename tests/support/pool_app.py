"""App for child process tests: tasks that crash, block, fork, leak and print."""

# ruff: noqa: T201  # tests check what tasks print

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
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
from uuid import uuid4

from pydantic import BaseModel, model_serializer, model_validator
from uuid_utils import uuid7

from horsies import AppConfig, Horsies, TaskError, TaskResult, current_task
from horsies.engine.child.runner import Attempt
from horsies.engine.pool.protocol import Recalled, TaskRef, encode, encode_frame
from horsies.registry.invocation import CURRENT_TASK

app = Horsies(AppConfig())


class UnencodableValue:
    """A value without a JSON form."""


@app.task("noop")
def noop() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("echo")
def echo(text: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text)


@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())


@app.task("random_values")
def random_values() -> TaskResult[list[str], TaskError]:
    with tempfile.NamedTemporaryFile() as file:
        return TaskResult(ok=[str(uuid7()), str(uuid4()), str(random.random()), file.name])  # noqa: S311


@app.task("variable")
def variable(name: str) -> TaskResult[str | None, TaskError]:
    return TaskResult(ok=os.environ.get(name))


@app.task("describe_process")
def describe_process() -> TaskResult[dict[str, int], TaskError]:
    return TaskResult(ok={"parent": os.getppid(), "session": os.getsid(0), "group": os.getpgrp()})


@app.task("describe_self")
def describe_self() -> TaskResult[str, TaskError]:
    task = current_task()
    assert task is not None
    return TaskResult(ok=f"{task.task_name} {task.attempt} {task.possible_overlap} {task.flags}")


@app.task("wait_for")
def wait_for(file: str) -> TaskResult[int, TaskError]:
    """Wait until the file exists."""
    while not Path(file).exists():
        time.sleep(0.01)
    return TaskResult(ok=os.getpid())


@app.task("segfault")
def segfault() -> TaskResult[None, TaskError]:
    ctypes.string_at(0)
    return TaskResult(ok=None)


@app.task("exit_process")
def exit_process(status: int) -> TaskResult[None, TaskError]:
    os._exit(status)


@app.task("close_channel")
def close_channel() -> TaskResult[None, TaskError]:
    os.close(_channel_fd())
    time.sleep(60)
    return TaskResult(ok=None)


@app.task("shut_down_channel")
def shut_down_channel() -> TaskResult[None, TaskError]:
    """Shut down the channel, including for the thread that reads it."""
    socket.socket(fileno=os.dup(_channel_fd())).shutdown(socket.SHUT_RDWR)
    time.sleep(60)
    return TaskResult(ok=None)


@app.task("forge_recall")
def forge_recall() -> TaskResult[None, TaskError]:
    """Report that the next task of the chunk was recalled, and one that the chunk does not have."""
    attempt = CURRENT_TASK.get()
    assert isinstance(attempt, Attempt)
    tasks = (TaskRef(attempt.chunk, attempt.position + 1), TaskRef(attempt.chunk, attempt.position + 100))
    os.write(_channel_fd(), encode_frame(encode([Recalled(tasks)])))
    time.sleep(60)
    return TaskResult(ok=None)


@app.task("send_garbage")
def send_garbage() -> TaskResult[None, TaskError]:
    os.write(_channel_fd(), b"\0\0\0\4rubb")
    time.sleep(60)
    return TaskResult(ok=None)


@app.task("eat_memory")
def eat_memory() -> TaskResult[int, TaskError]:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return TaskResult(ok=len(bytearray(1 << 31)))


@app.task("eat_memory_with_default_code", default_unhandled_error_code="UNKNOWN_ERROR")
def eat_memory_with_default_code() -> TaskResult[int, TaskError]:
    raise MemoryError


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


@app.task("return_wrong_type")
def return_wrong_type() -> TaskResult[int, TaskError]:
    return TaskResult(ok="not a number")  # pyright: ignore[reportReturnType]


LEAKED: list[bytes] = []


@app.task("grow")
def grow(megabytes: int) -> TaskResult[None, TaskError]:
    LEAKED.append(b"x" * (megabytes << 20))
    return TaskResult(ok=None)


@app.task("huge")
def huge(megabytes: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok="x" * (megabytes << 20))


@app.task("die_after")
def die_after() -> TaskResult[str, TaskError]:
    """Succeed, and kill the process right afterwards."""
    main = threading.main_thread()

    def kill_after_task() -> None:
        while _is_task_running(main):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill_after_task, daemon=True).start()
    return TaskResult(ok="done")


def _is_task_running(main: threading.Thread) -> bool:
    """Whether the main thread is not waiting for the next task."""
    frame = sys._current_frames().get(main.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "wait" and frame.f_code.co_filename.endswith("runner.py"):
            return False
        frame = frame.f_back
    return True


@app.task("spawn_and_wait")
def spawn_and_wait() -> TaskResult[int, TaskError]:
    """Start a program that inherits the channel, print its pid, then wait to be killed."""
    os.set_inheritable(_channel_fd(), True)
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    print(program.pid)
    time.sleep(60)
    return TaskResult(ok=program.pid)


@app.task("hold_gil")
def hold_gil(seconds: float) -> TaskResult[None, TaskError]:
    """Hold the GIL in C code that keeps the CPU busy."""
    library = ctypes.PyDLL(None)
    base = ctypes.create_string_buffer(1 << 20)
    until = time.monotonic() + seconds
    sys.setswitchinterval(1000)  # no other thread runs until this one waits
    while time.monotonic() < until:
        library.memset(base, 1, len(base))
    return TaskResult(ok=None)


@app.task("print_lines")
def print_lines() -> TaskResult[None, TaskError]:
    print("first\nsecond", end="")
    print("oh", file=sys.stderr)
    os.write(1, b"from C\n")
    return TaskResult(ok=None)


@app.task("fork")
def fork() -> TaskResult[int, TaskError]:
    """Fork a process that prints and exits; it must not use the channel."""
    forked = os.fork()
    if not forked:
        print("from the fork", flush=True)
        os._exit(0)
    _, status = os.waitpid(forked, 0)
    return TaskResult(ok=status)


@app.task("append_line")
def append_line(file: str) -> TaskResult[None, TaskError]:
    """Append a line for each run."""
    _append_line(file)
    return TaskResult(ok=None)


@app.task("append_line_async")
async def append_line_async(file: str) -> TaskResult[None, TaskError]:
    _append_line(file)
    return TaskResult(ok=None)


@app.task("fork_out")
def fork_out(way: str) -> TaskResult[int, TaskError]:
    """Fork; the copy leaves this function by `way`. Returns the exit status of the copy."""
    if forked := os.fork():
        return TaskResult(ok=_exit_status(forked))
    return _leave_by(way)


@app.task("fork_out_async")
async def fork_out_async(way: str) -> TaskResult[int, TaskError]:
    if forked := os.fork():
        return TaskResult(ok=_exit_status(forked))
    if way == "wait":
        await asyncio.sleep(0)
    return _leave_by(way)


@app.task("fork_out_in_subtask")
async def fork_out_in_subtask(way: str) -> TaskResult[int, TaskError]:
    """Like `fork_out_async`, in an asyncio task created by the coroutine."""

    async def fork_and_leave() -> int:
        if forked := os.fork():
            return _exit_status(forked)
        _leave_by(way)
        return 0

    return TaskResult(ok=await asyncio.create_task(fork_and_leave()))


@app.task("fork_in_thread")
def fork_in_thread(way: str) -> TaskResult[int, TaskError]:
    """Fork from a thread of a pool; returns how many channels to the worker the copy has open."""
    handler = logging.StreamHandler(sys.stderr)
    with ThreadPoolExecutor(1) as threads:
        return TaskResult(ok=threads.submit(FORK_WAYS[way], _worker_channels(), handler).result())


@app.task("fork_in_thread_async")
async def fork_in_thread_async(way: str) -> TaskResult[int, TaskError]:
    handler = logging.StreamHandler(sys.stderr)
    return TaskResult(ok=await asyncio.to_thread(FORK_WAYS[way], _worker_channels(), handler))


def _fork_with_os(channels: set[str], handler: logging.Handler) -> int:
    if forked := os.fork():
        return _exit_status(forked)
    os._exit(_run_in_copy(channels, handler))


def _fork_process(channels: set[str], handler: logging.Handler) -> int:
    context = get_context("fork")
    # Not by exit status: after a fork from a pool's thread, Python sets that to 1.
    answer: SimpleQueue[int] = context.SimpleQueue()
    process = context.Process(target=lambda: answer.put(_run_in_copy(channels, handler)))
    process.start()
    process.join()
    return answer.get()


def _fork_pool(channels: set[str], handler: logging.Handler) -> int:
    INHERITED_HANDLERS.append(handler)
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as processes:
        return processes.submit(_run_in_pool_copy, channels).result()


INHERITED_HANDLERS: list[logging.Handler] = []
FORK_WAYS = {"fork": _fork_with_os, "process": _fork_process, "pool": _fork_pool}


def _run_in_pool_copy(channels: set[str]) -> int:
    return _run_in_copy(channels, INHERITED_HANDLERS[-1])


def _run_in_copy(channels: set[str], handler: logging.Handler) -> int:
    """Print, log, and count the channels to the worker that are open in this process."""
    print("from the copy", flush=True)
    handler.handle(logging.LogRecord("copy", logging.INFO, __file__, 1, "logged there", None, None))
    return len(channels & set(_open_files()))


def _worker_channels() -> set[str]:
    """Kernel names of both channels to the worker."""
    return {str(Path(f"/proc/self/fd/{descriptor}").readlink()) for descriptor in sys.argv[1:3]}


def _open_files() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing is gone
            yield str(descriptor.readlink())


def _leave_by(way: str) -> TaskResult[int, TaskError]:
    if way == "raise":
        raise ValueError(way)
    if way == "exit":
        sys.exit(3)
    return TaskResult(ok=-1)


def _exit_status(forked: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])


def _append_line(file: str) -> None:
    with Path(file).open("ab", buffering=0) as lines:
        lines.write(b"here\n")


class UnexpectedBaseException(BaseException):
    """Not caught by `except Exception`."""


class FailsToDecode(BaseModel):
    """Raises when it is decoded (word "in") and when it is encoded."""

    word: str

    @model_validator(mode="after")
    def _fail_to_decode(self) -> FailsToDecode:
        if self.word == "in":
            raise UnexpectedBaseException
        return self

    @model_serializer
    def _fail_to_encode(self) -> dict[str, str]:
        raise UnexpectedBaseException


@app.task("fail_to_decode")
def fail_to_decode(value: FailsToDecode) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("fail_to_decode_async")
async def fail_to_decode_async(value: FailsToDecode) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("fail_to_encode")
def fail_to_encode() -> TaskResult[FailsToDecode, TaskError]:
    return TaskResult(ok=FailsToDecode(word="out"))


@app.task("fail_to_encode_async")
async def fail_to_encode_async() -> TaskResult[FailsToDecode, TaskError]:
    return TaskResult(ok=FailsToDecode(word="out"))


EXCEPTIONS: dict[str, type[BaseException]] = {
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "cancel": asyncio.CancelledError,
    "generator": GeneratorExit,
    "recursion": RecursionError,
    "memory": MemoryError,
}


class RaisesOnValidation(BaseModel):
    """Raises the named exception when it is validated."""

    exception: str

    @model_validator(mode="after")
    def _raise(self) -> RaisesOnValidation:
        raise EXCEPTIONS[self.exception]


class RaisesOnDump(BaseModel):
    """Raises the named exception when it is serialized."""

    exception: str

    @model_serializer
    def _raise(self) -> dict[str, str]:
        raise EXCEPTIONS[self.exception]


@app.task("raise_on_validation")
def raise_on_validation(exception: str) -> TaskResult[RaisesOnValidation, TaskError]:
    return TaskResult[Any, TaskError](ok={"exception": exception})


@app.task("raise_on_validation_async")
async def raise_on_validation_async(exception: str) -> TaskResult[RaisesOnValidation, TaskError]:
    return TaskResult[Any, TaskError](ok={"exception": exception})


@app.task("raise_on_dump")
def raise_on_dump(exception: str) -> TaskResult[RaisesOnDump, TaskError]:
    return TaskResult(ok=RaisesOnDump(exception=exception))


@app.task("raise_on_dump_async")
async def raise_on_dump_async(exception: str) -> TaskResult[RaisesOnDump, TaskError]:
    return TaskResult(ok=RaisesOnDump(exception=exception))


class RaisesOnStr(SystemExit):
    """An exception whose str() raises itself."""

    def __str__(self) -> str:
        raise RaisesOnStr


@app.task("raise_long_message")
def raise_long_message(megabytes: int) -> TaskResult[None, TaskError]:
    raise ValueError("x" * (megabytes << 20))


@app.task("return_long_message")
def return_long_message(megabytes: int) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="LONG", message="x" * (megabytes << 20)))


@app.task("return_long_code")
def return_long_code(megabytes: int) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="X" * (megabytes << 20)))


class RaisesLongMessage(BaseModel):
    """Its validator raises an error with a message of so many megabytes."""

    megabytes: int

    @model_validator(mode="after")
    def _raise(self) -> RaisesLongMessage:
        raise LookupError("x" * (self.megabytes << 20))


@app.task("decode_long_message")
def decode_long_message(value: RaisesLongMessage) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("log_much")
def log_much() -> TaskResult[None, TaskError]:
    fields = {f"field_{number}": "x" * 20_000 for number in range(6_000)}
    logging.getLogger("x" * (70 << 20)).error("much", extra=fields)
    return TaskResult(ok=None)


@app.task("fail")
def fail(text: str) -> TaskResult[None, TaskError]:
    raise LookupError(text)


@app.task("raise_on_str")
def raise_on_str() -> TaskResult[None, TaskError]:
    raise RaisesOnStr


@app.task("nap")
async def nap(seconds: float) -> TaskResult[int, TaskError]:
    await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())


ARRIVED: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@app.task("meet")
async def meet(me: str, other: str) -> TaskResult[str, TaskError]:
    """Finishes only if the other task runs at the same time."""
    ARRIVED[me].set()
    await ARRIVED[other].wait()
    return TaskResult(ok=me)


@app.task("exit_in_subtask")
async def exit_in_subtask() -> TaskResult[str, TaskError]:
    async def leave_loop() -> None:
        sys.exit(4)

    try:
        await asyncio.create_task(leave_loop())
    except SystemExit:
        return TaskResult(ok="still here")
    return TaskResult(ok="not raised")


def _channel_fd() -> int:
    """File descriptor of the channel to the worker."""
    return int(sys.argv[1])
