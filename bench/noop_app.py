"""The app of the measured worker: tasks that do almost nothing."""

from __future__ import annotations

import os
import time
from typing import Any

from horsies import Horsies, IntervalSchedule, RetryPolicy, TaskError, TaskResult, TaskSchedule

app = Horsies()
_runs_file = os.open(os.environ.get("BENCH_RUNS_FILE", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task("noop")
def noop() -> TaskResult[None, TaskError]:
    """Append 16 bytes to a file, so that runs can be counted independently of the queue."""
    os.write(_runs_file, b"0123456789abcde\n")
    return TaskResult(ok=None)


@app.task("add")
def add(a: int, b: str) -> TaskResult[dict[str, Any], TaskError]:
    """Like `noop`, with arguments and a result that have to be decoded, checked and encoded."""
    os.write(_runs_file, b"0123456789abcde\n")
    return TaskResult(ok={"a": a, "b": b, "sum": a + len(b)})


@app.task("stamp")
def stamp() -> TaskResult[int, TaskError]:
    """Return the start time by the monotonic clock, which all processes of a machine share."""
    return TaskResult(ok=time.monotonic_ns())


@app.task("greet")
def greet(name: str, *, times: int) -> TaskResult[str, TaskError]:
    """A task with arguments and a result."""
    return TaskResult(ok=f"hello {name} " * times)


@app.task("sleep", retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["WORKER_CRASHED"]))
def sleep() -> TaskResult[None, TaskError]:
    """Run until the worker is killed; the retry is due an hour later."""
    time.sleep(600)
    return TaskResult(ok=None)


app.add_schedules(
    TaskSchedule(name=f"s{n}", task_name="noop", pattern=IntervalSchedule(days=1))
    for n in range(int(os.environ.get("BENCH_SCHEDULES", "0")))
)
