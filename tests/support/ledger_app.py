"""How tasks write down when they begin and end, in a table that horsies never touches."""

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
"""The variable that says where."""

_WRITE = "INSERT INTO ledger (task_id, claim_token, attempt, pid, what) VALUES ($1::text::uuid, $2, $3, $4, $5)"


class LedgerWriter:
    """One autocommit connection a process, on a thread of its own, so that functions and coroutines both can write."""

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
            # Straight to the server, whatever a test puts between it and the worker.
            self._connection = await asyncpg.connect(os.environ[URL])
        await self._connection.execute(_WRITE, *values)


_writer = LedgerWriter()


@contextmanager
def recorded() -> Generator[None]:
    """The body of a task, from its start to its end; a death leaves it open."""
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
        # Cancelled or not, the end is written before the coroutine is gone.
        await asyncio.shield(_writer.write_async("end"))


# Tasks on record that leave their process alone: they work, wait, fail and tell.

# ruff: noqa: T201  # what tasks print is part of what is tested


def work(seconds: float = 0.0) -> TaskResult[int, TaskError]:
    with recorded():
        time.sleep(seconds)
    return TaskResult(ok=os.getpid())


def plain() -> TaskResult[None, TaskError]:
    """As short as a task can be: nothing is written."""
    return TaskResult(ok=None)


def jot(file: str) -> TaskResult[None, TaskError]:
    """The ledger of very short tasks: one line in a file, written at once."""
    task = current_task()
    assert task is not None
    with Path(file).open("ab", buffering=0) as lines:
        lines.write(f"{task.task_id}\n".encode())
    return TaskResult(ok=None)


def wait_for(file: str) -> TaskResult[int, TaskError]:
    """Until the file is there."""
    with recorded():
        while not Path(file).exists():
            time.sleep(0.005)
    return TaskResult(ok=os.getpid())


async def nap(seconds: float) -> TaskResult[int, TaskError]:
    async with recorded_async():
        await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())


async def hold_loop(file: str) -> TaskResult[int, TaskError]:
    """Keep the event loop of its child from going on until the file is there."""
    async with recorded_async():
        while not Path(file).exists():
            time.sleep(0.005)  # noqa: ASYNC251  # that is the point of it
    return TaskResult(ok=os.getpid())


async def linger(seconds: float) -> TaskResult[int, TaskError]:
    """A coroutine that does not go when it is cancelled."""
    until = time.monotonic() + seconds
    async with recorded_async():
        while time.monotonic() < until:
            try:
                await asyncio.sleep(until - time.monotonic())
            except asyncio.CancelledError:
                print("will not go")
    return TaskResult(ok=os.getpid())


def refuse(code: str) -> TaskResult[None, TaskError]:
    with recorded():
        return TaskResult(err=TaskError(error_code=code, message="as asked", data={"asked": code}))


def stumble(times: int) -> TaskResult[int, TaskError]:
    """Fail so many times, then end well."""
    with recorded():
        task = current_task()
        assert task is not None
        if task.attempt <= times:
            return TaskResult(err=TaskError(error_code="STUMBLED", message=f"attempt {task.attempt}"))
        return TaskResult(ok=task.attempt)


def explode(message: str) -> TaskResult[None, TaskError]:
    with recorded():
        raise ValueError(message)


async def explode_async(message: str) -> TaskResult[None, TaskError]:
    async with recorded_async():
        raise ValueError(message)


class OddValueError(ValueError):
    """No mapper knows it, though one knows its parent."""


def explode_oddly() -> TaskResult[None, TaskError]:
    with recorded():
        raise OddValueError


def give_nothing() -> TaskResult[None, TaskError]:
    with recorded():
        return None  # pyright: ignore[reportReturnType]


def mistype() -> TaskResult[int, TaskError]:
    with recorded():
        return TaskResult(ok="no number")  # pyright: ignore[reportReturnType]


class UnencodableResult:
    """A value that fits `object` and has no JSON form."""


def unencodable() -> TaskResult[object, TaskError]:
    with recorded():
        return TaskResult(ok=UnencodableResult())


def talk(text: str) -> TaskResult[None, TaskError]:
    with recorded():
        print(text)
        print(text.upper(), file=sys.stderr)
    return TaskResult(ok=None)


def who() -> TaskResult[dict[str, Any], TaskError]:
    """Everything that a running task is told about itself."""
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


# Tasks on record that do harm to their process, or try to.


def segfault() -> TaskResult[None, TaskError]:
    with recorded():
        ctypes.string_at(0)
    return TaskResult(ok=None)


def leave(status: int) -> TaskResult[None, TaskError]:
    with recorded():
        os._exit(status)


def kill_self() -> TaskResult[None, TaskError]:
    with recorded():
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


def stop_self(seconds: float = 60.0) -> TaskResult[None, TaskError]:
    """Stand still, beats and all."""
    with recorded():
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(seconds)
    return TaskResult(ok=None)


def die_if(*, told: bool) -> TaskResult[None, TaskError]:
    """Short, and now and then deadly."""
    with recorded():
        if told:
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


def hang_up() -> TaskResult[None, TaskError]:
    """Close the line to the worker for good."""
    with recorded():
        line: int = json.loads(sys.argv[1])["channel_fd"]
        socket.socket(fileno=os.dup(line)).shutdown(socket.SHUT_RDWR)
        time.sleep(60)
    return TaskResult(ok=None)


def burn(seconds: float) -> TaskResult[None, TaskError]:
    """Hold the interpreter in C code that uses the CPU all the time."""
    with recorded():
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


# The app of workers under test: tasks that write down when they begin and end, and small thresholds.
#
# In the children of workers `app` is made of the environment. Tests make the same app with `ledger_app`.

CONFIG = "LEDGER_CONFIG"

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
    """So many retries, each a second later, after any of these codes."""
    return RetryPolicy.fixed([1] * times, auto_retry_for=list(codes), jitter=False)


INTERRUPTIONS = ("WORKER_CRASHED", "SHUTDOWN", "TASK_TIMEOUT")

TASKS: tuple[tuple[str, Callable[..., Any], dict[str, Any]], ...] = (
    ("work", work, {}),
    ("work_again", work, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("work_briefly", work, {"timeout_ms": 1_000}),
    ("work_briefly_again", work, {"timeout_ms": 1_000, "retry_policy": retried("TASK_TIMEOUT")}),
    ("plain", plain, {}),
    ("jot", jot, {}),
    ("wait_for", wait_for, {}),
    ("wait_for_again", wait_for, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("nap", nap, {}),
    ("nap_again", nap, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("nap_briefly", nap, {"timeout_ms": 1_000}),
    ("hold_loop", hold_loop, {}),
    ("linger_briefly", linger, {"timeout_ms": 1_000}),
    ("refuse", refuse, {"retry_policy": retried("LISTED", times=2)}),
    (
        "stumble",
        stumble,
        {"retry_policy": RetryPolicy.exponential(1, max_retries=3, auto_retry_for=["STUMBLED"])},
    ),
    ("explode", explode, {}),
    ("explode_async", explode_async, {}),
    ("explode_mapped", explode, {"exception_mapper": {ValueError: "BAD_VALUE"}}),
    ("explode_oddly", explode_oddly, {"exception_mapper": {ValueError: "BAD_VALUE"}}),
    ("give_nothing", give_nothing, {}),
    ("mistype", mistype, {}),
    ("unencodable", unencodable, {}),
    ("segfault", segfault, {}),
    ("leave", leave, {}),
    ("kill_self", kill_self, {}),
    ("poison", kill_self, {"retry_policy": retried("WORKER_CRASHED", times=10)}),
    ("stop_self", stop_self, {}),
    ("stop_self_briefly", stop_self, {"timeout_ms": 1_000}),
    ("die_if", die_if, {}),
    ("exit_by_exception", exit_by_exception, {}),
    ("interrupt", interrupt, {}),
    ("eat_memory", eat_memory, {}),
    ("hang_up", hang_up, {}),
    ("burn", burn, {}),
    ("swallow", swallow, {"retry_policy": retried("WORKER_CRASHED", times=10)}),
    ("talk", talk, {}),
    ("who", who, {"timeout_ms": 30_000, "flags": ["vip"]}),
)


def ledger_app(url: str, **config: Any) -> Horsies:
    """An app with the tasks above and small thresholds; `recovery`, `retention` and `resilience` may be mappings."""
    recovery = RecoveryConfig.unchecked(**QUICK_RECOVERY | config.pop("recovery", {}))
    retention = RetentionConfig.unchecked(**config.pop("retention", {}))
    resilience = WorkerResilienceConfig.unchecked(**QUICK_RESILIENCE | config.pop("resilience", {}))
    broker = PostgresConfig(database_url=config.pop("database_url", url), **config.pop("broker", {}))
    app = Horsies(AppConfig(broker=broker, recovery=recovery, retention=retention, resilience=resilience, **config))
    queue = {} if "custom_queues" not in config else {"queue_name": config["custom_queues"][0]["name"]}
    for name, function, options in TASKS:
        app.task(name, **queue | options)(function)
    return app


if URL in os.environ:
    app = ledger_app(os.environ[URL], **json.loads(os.environ.get(CONFIG, "{}")))
