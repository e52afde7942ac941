"""A small app to try horsies with: `app.locator = "horsies.sample:app"`.

Its tasks touch neither the network nor files. Each shows one thing, and is written to be copied.
"""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal

from pydantic import BaseModel

from horsies import (
    Horsies,
    OperationalErrorCode,
    RetryPolicy,
    TaskError,
    TaskResult,
    current_task,
)

app = Horsies()


class Receipt(BaseModel):
    """What the mail server would say of a message it took."""

    to: str
    characters: int


class Size(BaseModel):
    """Pixels."""

    width: int
    height: int


@app.task("sample.send_email")
def send_email(to: str, subject: str, body: str = "") -> TaskResult[Receipt, TaskError]:
    """A failure that is part of the trade is returned, with a code of one's own."""
    if "@" not in to:
        return TaskResult(err=TaskError(error_code="ADDRESS_REFUSED", message="an address needs an @"))
    return TaskResult(ok=Receipt(to=to, characters=len(subject) + len(body)))


@app.task("sample.resize", priority=50)
def resize(image: Size, longest_side: int = 640) -> TaskResult[Size, TaskError]:
    """Arguments and results are typed: the sender gives a `Size`, and gets one back."""
    scale = min(1.0, longest_side / max(image.width, image.height))
    return TaskResult(ok=Size(width=round(image.width * scale), height=round(image.height * scale)))


@app.task(
    "sample.charge_card",
    exception_mapper={ConnectionError: "BANK_UNREACHABLE"},
    retry_policy=RetryPolicy.exponential(1, max_retries=5, auto_retry_for=["BANK_UNREACHABLE"]),
)
def charge_card(amount: Decimal, succeeds_on_attempt: int = 3) -> TaskResult[Decimal, TaskError]:
    """A flaky one: an exception becomes a code, and the policy says which codes are worth another try."""
    running = current_task()
    attempt = running.attempt if running else 1
    if attempt < succeeds_on_attempt:
        raise ConnectionError(f"attempt {attempt} of {succeeds_on_attempt}")
    return TaskResult(ok=amount)


@app.task("sample.make_report", timeout_ms=60_000)
def make_report(seconds: float = 5.0) -> TaskResult[str, TaskError]:
    """A slow one: after a minute it is ended, and its result is TASK_TIMEOUT."""
    time.sleep(seconds)
    return TaskResult(ok=f"report made in {seconds} s")


@app.task("sample.fetch_rate")
async def fetch_rate(currency: str, latency_s: float = 0.1) -> TaskResult[Decimal, TaskError]:
    """An `async def`: one child of a worker runs many of these at a time, since they mostly wait."""
    await asyncio.sleep(latency_s)
    return TaskResult(ok=Decimal(sum(currency.encode())) / 100)


@app.task(
    "sample.import_catalogue",
    flags=["infrastructure_resilient"],
    retry_policy=RetryPolicy.fixed([10, 60, 300], auto_retry_for=[OperationalErrorCode.WORKER_CRASHED]),
)
def import_catalogue(pages: int, seconds_a_page: float = 1.0) -> TaskResult[int, TaskError]:
    """A long one that may be repeated: the flag makes recovery patient with it, the policy starts it again."""
    for _ in range(pages):
        time.sleep(seconds_a_page)
    return TaskResult(ok=pages)
