"""The app of the worker that is measured: tasks that do next to nothing."""

from __future__ import annotations

import os
import time

from horsies import Horsies, RetryPolicy, TaskError, TaskResult

app = Horsies()
_lines = os.open(os.environ.get("BENCH_LINES", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task("noop")
def noop() -> TaskResult[None, TaskError]:
    """One append of 16 bytes, so that runs can be counted from outside the queue."""
    os.write(_lines, b"0123456789abcde\n")
    return TaskResult(ok=None)


@app.task("stamp")
def stamp() -> TaskResult[int, TaskError]:
    """When it began, by the clock that all processes of a machine share."""
    return TaskResult(ok=time.monotonic_ns())


@app.task("greet")
def greet(name: str, *, times: int) -> TaskResult[str, TaskError]:
    """A task with arguments and a result."""
    return TaskResult(ok=f"hello {name} " * times)


@app.task("sleep", retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["WORKER_CRASHED"]))
def sleep() -> TaskResult[None, TaskError]:
    """Run until the worker dies; the retry starts an hour later."""
    time.sleep(600)
    return TaskResult(ok=None)
