"""Tasks on record that leave their process alone: they work, wait, fail and tell."""

# ruff: noqa: T201  # what tasks print is part of what is tested

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from horsies import TaskError, TaskResult, current_task
from tests.support.ledger_pen import on_record, on_record_async


def work(seconds: float = 0.0) -> TaskResult[int, TaskError]:
    with on_record():
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
    with on_record():
        while not Path(file).exists():
            time.sleep(0.005)
    return TaskResult(ok=os.getpid())


async def nap(seconds: float) -> TaskResult[int, TaskError]:
    async with on_record_async():
        await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())


async def hold_loop(file: str) -> TaskResult[int, TaskError]:
    """Keep the event loop of its child from going on until the file is there."""
    async with on_record_async():
        while not Path(file).exists():
            time.sleep(0.005)  # noqa: ASYNC251  # that is the point of it
    return TaskResult(ok=os.getpid())


async def linger(seconds: float) -> TaskResult[int, TaskError]:
    """A coroutine that does not go when it is cancelled."""
    until = time.monotonic() + seconds
    async with on_record_async():
        while time.monotonic() < until:
            try:
                await asyncio.sleep(until - time.monotonic())
            except asyncio.CancelledError:
                print("will not go")
    return TaskResult(ok=os.getpid())


def refuse(code: str) -> TaskResult[None, TaskError]:
    with on_record():
        return TaskResult(err=TaskError(error_code=code, message="as asked", data={"asked": code}))


def stumble(times: int) -> TaskResult[int, TaskError]:
    """Fail so many times, then end well."""
    with on_record():
        task = current_task()
        assert task is not None
        if task.attempt <= times:
            return TaskResult(err=TaskError(error_code="STUMBLED", message=f"attempt {task.attempt}"))
        return TaskResult(ok=task.attempt)


def explode(message: str) -> TaskResult[None, TaskError]:
    with on_record():
        raise ValueError(message)


async def explode_async(message: str) -> TaskResult[None, TaskError]:
    async with on_record_async():
        raise ValueError(message)


class OddValueError(ValueError):
    """No mapper knows it, though one knows its parent."""


def explode_oddly() -> TaskResult[None, TaskError]:
    with on_record():
        raise OddValueError


def give_nothing() -> TaskResult[None, TaskError]:
    with on_record():
        return None  # pyright: ignore[reportReturnType]


def mistype() -> TaskResult[int, TaskError]:
    with on_record():
        return TaskResult(ok="no number")  # pyright: ignore[reportReturnType]


class Stubborn:
    """A value that fits `object` and has no JSON form."""


def unencodable() -> TaskResult[object, TaskError]:
    with on_record():
        return TaskResult(ok=Stubborn())


def talk(text: str) -> TaskResult[None, TaskError]:
    with on_record():
        print(text)
        print(text.upper(), file=sys.stderr)
    return TaskResult(ok=None)


def who() -> TaskResult[dict[str, Any], TaskError]:
    """Everything that a running task is told about itself."""
    with on_record():
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
