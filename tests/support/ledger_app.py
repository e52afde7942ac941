"""App for worker tests: its tasks record their starts and ends in a `ledger` table that horsies does not use.

In the children of workers `app` is built from environment variables; tests build the same app with `ledger_app`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from pydantic import BaseModel, model_validator

from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    RecoveryConfig,
    RetentionConfig,
    RetryPolicy,
    TaskError,
    TaskResult,
    WorkerResilienceConfig,
    current_task,
)

URL = "LEDGER_URL"
CONFIG = "LEDGER_CONFIG"
"""Names of environment variables."""

_WRITE = "INSERT INTO ledger (task_id, claim_token, attempt, pid, what) VALUES ($1::text::uuid, $2, $3, $4, $5)"


class LedgerWriter:
    """Writes ledger rows on one autocommit connection in its own thread, for functions and coroutines alike."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._connection: asyncpg.Connection[Any] | None = None

    def write(self, what: str) -> None:
        self._run(self._insert(self._values(what)))

    async def write_async(self, what: str) -> None:
        await asyncio.to_thread(self._run, self._insert(self._values(what)))

    def _values(self, what: str) -> tuple[object, ...]:
        task = current_task()
        assert task is not None
        return task.task_id, task.claim_token, task.attempt, os.getpid(), what

    def _run(self, writing: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
            asyncio.run_coroutine_threadsafe(writing, self._loop).result()

    async def _insert(self, values: tuple[object, ...]) -> None:
        if self._connection is None or self._connection.is_closed():
            # Directly to the server, bypassing any proxy that a test puts in front of it.
            self._connection = await asyncpg.connect(os.environ[URL])
        await self._connection.execute(_WRITE, *values)


_writer = LedgerWriter()


@contextmanager
def recorded() -> Generator[None]:
    """Record the start and end of a task body; a crash leaves only the start."""
    _writer.write("start")
    try:
        yield
    finally:
        _writer.write("end")


@asynccontextmanager
async def recorded_async() -> AsyncGenerator[None]:
    await _writer.write_async("start")
    try:
        yield
    finally:
        # Write the end even if the coroutine is cancelled.
        await asyncio.shield(_writer.write_async("end"))


# Tasks that do not harm their process

# ruff: noqa: T201  # tests check what tasks print


def work(seconds: float = 0.0) -> TaskResult[int, TaskError]:
    with recorded():
        time.sleep(seconds)
    return TaskResult(ok=os.getpid())


def plain() -> TaskResult[None, TaskError]:
    """The shortest possible task; it writes no ledger rows."""
    return TaskResult(ok=None)


def append_line(file: str) -> TaskResult[None, TaskError]:
    """Append the task id to a file; cheaper than the ledger, for very short tasks."""
    task = current_task()
    assert task is not None
    with Path(file).open("ab", buffering=0) as lines:
        lines.write(f"{task.task_id}\n".encode())
    return TaskResult(ok=None)


def append_line_after(gate: str, file: str) -> TaskResult[None, TaskError]:
    """Wait until the gate exists, then append the task id to a file."""
    while not Path(gate).exists():
        time.sleep(0.005)
    return append_line(file)


def wait_for(file: str) -> TaskResult[int, TaskError]:
    """Wait until the file exists."""
    with recorded():
        while not Path(file).exists():
            time.sleep(0.005)
    return TaskResult(ok=os.getpid())


async def nap(seconds: float) -> TaskResult[int, TaskError]:
    async with recorded_async():
        await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())


async def wait_for_async(file: str) -> TaskResult[int, TaskError]:
    """Wait until the file exists, in a coroutine that lets others run."""
    async with recorded_async():
        while not Path(file).exists():  # noqa: ASYNC110  # the test creates it in another process
            await asyncio.sleep(0.01)
    return TaskResult(ok=os.getpid())


async def hold_loop(file: str) -> TaskResult[int, TaskError]:
    """Block the event loop of the child until the file exists."""
    async with recorded_async():
        while not Path(file).exists():
            time.sleep(0.005)  # noqa: ASYNC251  # blocks on purpose
    return TaskResult(ok=os.getpid())


async def ignore_cancel(seconds: float) -> TaskResult[int, TaskError]:
    """A coroutine that ignores cancellation."""
    until = time.monotonic() + seconds
    async with recorded_async():
        while time.monotonic() < until:
            try:
                await asyncio.sleep(until - time.monotonic())
            except asyncio.CancelledError:
                print("cancellation ignored")
    return TaskResult(ok=os.getpid())


def return_error(code: str) -> TaskResult[None, TaskError]:
    with recorded():
        return TaskResult(err=TaskError(error_code=code, message="as asked", data={"asked": code}))


def fail_times(times: int) -> TaskResult[int, TaskError]:
    """Fail in the first `times` attempts, then succeed."""
    with recorded():
        task = current_task()
        assert task is not None
        if task.attempt <= times:
            return TaskResult(err=TaskError(error_code="STUMBLED", message=f"attempt {task.attempt}"))
        return TaskResult(ok=task.attempt)


def raise_error(message: str) -> TaskResult[None, TaskError]:
    with recorded():
        raise ValueError(message)


async def raise_error_async(message: str) -> TaskResult[None, TaskError]:
    async with recorded_async():
        raise ValueError(message)


class OddValueError(ValueError):
    """Not in any exception mapper, although its base class is."""


def raise_unmapped() -> TaskResult[None, TaskError]:
    with recorded():
        raise OddValueError


def return_none() -> TaskResult[None, TaskError]:
    with recorded():
        return None  # pyright: ignore[reportReturnType]


def return_wrong_type() -> TaskResult[int, TaskError]:
    with recorded():
        return TaskResult(ok="not a number")  # pyright: ignore[reportReturnType]


class UnencodableResult:
    """A value without a JSON form."""


def unencodable() -> TaskResult[object, TaskError]:
    with recorded():
        return TaskResult(ok=UnencodableResult())


def print_lines(text: str) -> TaskResult[None, TaskError]:
    with recorded():
        print(text)
        print(text.upper(), file=sys.stderr)
    return TaskResult(ok=None)


def describe_self() -> TaskResult[dict[str, Any], TaskError]:
    """Return everything that `current_task` knows."""
    with recorded():
        task = current_task()
        assert task is not None
        return TaskResult(
            ok={
                "task_id": task.task_id,
                "task_name": task.task_name,
                "queue_name": task.queue_name,
                "attempt": task.attempt,
                "retry_count": task.retry_count,
                "claim_token": task.claim_token,
                "sent_at": task.sent_at.isoformat(),
                "good_until": task.good_until and task.good_until.isoformat(),
                "timeout_ms": task.timeout_ms,
                "worker_id": task.worker_id,
                "flags": sorted(task.flags),
                "possible_overlap": task.possible_overlap,
            }
        )


def read_clock(times: int) -> TaskResult[list[float], TaskError]:
    """Return what the clock of the child says, several times in a row."""
    with recorded():
        return TaskResult(ok=[time.time() for _ in range(times)])


# Tasks that harm their process, or try to


def segfault() -> TaskResult[None, TaskError]:
    with recorded():
        ctypes.string_at(0)
    return TaskResult(ok=None)


def exit_process(status: int) -> TaskResult[None, TaskError]:
    with recorded():
        os._exit(status)


def kill_self() -> TaskResult[None, TaskError]:
    with recorded():
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


def stop_self(seconds: float = 60.0) -> TaskResult[None, TaskError]:
    """Freeze the process, including its heartbeats."""
    with recorded():
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(seconds)
    return TaskResult(ok=None)


def exit_if(*, condition: bool) -> TaskResult[None, TaskError]:
    """A short task that kills its process on demand."""
    with recorded():
        if condition:
            os._exit(9)
    return TaskResult(ok=None)


def exit_by_exception(status: int) -> TaskResult[None, TaskError]:
    with recorded():
        sys.exit(status)


def interrupt() -> TaskResult[None, TaskError]:
    with recorded():
        raise KeyboardInterrupt


def eat_memory() -> TaskResult[int, TaskError]:
    with recorded():
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
        try:
            return TaskResult(ok=len(bytearray(1 << 31)))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def shut_down_channel() -> TaskResult[None, TaskError]:
    """Shut down the channel to the worker."""
    with recorded():
        socket.socket(fileno=os.dup(int(sys.argv[1]))).shutdown(socket.SHUT_RDWR)
        time.sleep(60)
    return TaskResult(ok=None)


def hold_gil(seconds: float) -> TaskResult[None, TaskError]:
    """Hold the GIL in C code that keeps the CPU busy."""
    with recorded():
        library = ctypes.PyDLL(None)
        base = ctypes.create_string_buffer(1 << 20)
        until = time.monotonic() + seconds
        previous = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # no other thread runs until this one waits
        while time.monotonic() < until:
            library.memset(base, 1, len(base))
        sys.setswitchinterval(previous)
    return TaskResult(ok=None)


class CrashesOnDecode(BaseModel):
    """An argument whose decoding kills the process, in children only."""

    text: str

    @model_validator(mode="after")
    def _crash(self) -> CrashesOnDecode:
        if os.environ.get("HORSIES_CHILD_PROCESS"):
            os._exit(66)
        return self


def crash_on_decode(value: CrashesOnDecode) -> TaskResult[str, TaskError]:
    return TaskResult(ok=value.text)


# The app

QUICK_RECOVERY: dict[str, Any] = {
    "runner_heartbeat_interval_ms": 200,
    "claimer_heartbeat_interval_ms": 200,
    "claimed_stale_threshold_ms": 1_000,
    "running_stale_threshold_ms": 1_000,
    "worker_stale_threshold_ms": 1_000,
    "check_interval_ms": 300,
}
QUICK_RESILIENCE: dict[str, Any] = {
    "db_retry_initial_ms": 50,
    "db_retry_max_ms": 300,
    "notify_poll_interval_ms": 1_000,
}


def retried(*codes: str, times: int = 1) -> RetryPolicy:
    """A policy of `times` retries after any of these codes, each delayed by one second."""
    return RetryPolicy.fixed([1] * times, auto_retry_for=list(codes), jitter=False)


INTERRUPTIONS = ("WORKER_CRASHED", "SHUTDOWN", "TASK_TIMEOUT")

TASKS: tuple[tuple[str, Callable[..., Any], dict[str, Any]], ...] = (
    ("work", work, {}),
    ("work_again", work, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("work_briefly", work, {"timeout_ms": 1_000}),
    ("work_briefly_again", work, {"timeout_ms": 1_000, "retry_policy": retried("TASK_TIMEOUT")}),
    ("plain", plain, {}),
    ("append_line", append_line, {}),
    ("append_line_after", append_line_after, {}),
    ("append_line_again", append_line, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("wait_for", wait_for, {}),
    ("wait_for_again", wait_for, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("nap", nap, {}),
    ("nap_again", nap, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("nap_briefly", nap, {"timeout_ms": 1_000}),
    ("wait_for_async", wait_for_async, {}),
    ("hold_loop", hold_loop, {}),
    ("ignore_cancel_briefly", ignore_cancel, {"timeout_ms": 1_000}),
    ("return_error", return_error, {"retry_policy": retried("LISTED", times=2)}),
    (
        "fail_times",
        fail_times,
        {"retry_policy": RetryPolicy.exponential(1, max_retries=3, auto_retry_for=["STUMBLED"])},
    ),
    ("raise_error", raise_error, {}),
    ("raise_error_async", raise_error_async, {}),
    ("raise_error_mapped", raise_error, {"exception_mapper": {ValueError: "BAD_VALUE"}}),
    ("raise_unmapped", raise_unmapped, {"exception_mapper": {ValueError: "BAD_VALUE"}}),
    ("return_none", return_none, {}),
    ("return_wrong_type", return_wrong_type, {}),
    ("unencodable", unencodable, {}),
    ("segfault", segfault, {}),
    ("exit_process", exit_process, {}),
    ("kill_self", kill_self, {}),
    ("poison", kill_self, {"retry_policy": retried("WORKER_CRASHED", times=10)}),
    ("stop_self", stop_self, {}),
    ("stop_self_briefly", stop_self, {"timeout_ms": 1_000}),
    ("exit_if", exit_if, {}),
    ("exit_by_exception", exit_by_exception, {}),
    ("interrupt", interrupt, {}),
    ("eat_memory", eat_memory, {}),
    ("shut_down_channel", shut_down_channel, {}),
    ("hold_gil", hold_gil, {}),
    ("crash_on_decode", crash_on_decode, {"retry_policy": retried("WORKER_CRASHED", times=10)}),
    ("print_lines", print_lines, {}),
    ("read_clock", read_clock, {}),
    ("describe_self", describe_self, {"timeout_ms": 30_000, "flags": ["vip"]}),
)


def ledger_app(url: str, **config: Any) -> Horsies:
    """An app with the tasks above and short thresholds; `recovery`, `retention` and `resilience` may be mappings.

    `missing_tasks` are not registered, as in another version of the app.
    """
    missing = config.pop("missing_tasks", ())
    recovery = RecoveryConfig.unchecked(**QUICK_RECOVERY | config.pop("recovery", {}))
    retention = RetentionConfig.unchecked(**config.pop("retention", {}))
    resilience = WorkerResilienceConfig.unchecked(**QUICK_RESILIENCE | config.pop("resilience", {}))
    broker = PostgresConfig(database_url=config.pop("database_url", url), **config.pop("broker", {}))
    app = Horsies(AppConfig(broker=broker, recovery=recovery, retention=retention, resilience=resilience, **config))
    queue = {} if "custom_queues" not in config else {"queue_name": config["custom_queues"][0]["name"]}
    for name, function, options in (task for task in TASKS if task[0] not in missing):
        app.task(name, **queue | options)(function)
    return app


if URL in os.environ:
    app = ledger_app(os.environ[URL], **json.loads(os.environ.get(CONFIG, "{}")))
