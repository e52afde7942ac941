"""A sample app to try horsies with: `app.locator = "horsies.sample:app"`.

The tasks use neither the network nor files. Each shows one feature and is meant to be copied.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import time as clock_time
from decimal import Decimal
from statistics import median

from pydantic import BaseModel

from horsies import (
    CronSchedule,
    DailySchedule,
    Horsies,
    IntervalSchedule,
    NodeKey,
    OnError,
    OperationalErrorCode,
    RetryPolicy,
    SubWorkflowNode,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkflowContext,
    WorkflowDefinition,
    current_task,
    from_node,
)

app = Horsies()


class Receipt(BaseModel):
    """The answer of a mail server that accepted a message."""

    to: str
    characters: int


class Size(BaseModel):
    """The size of an image in pixels."""

    width: int
    height: int


@app.scheduled(
    DailySchedule(time=clock_time(8, 0)),
    name="morning-mail",
    timezone="Europe/Vienna",
    kwargs={"to": "ada@example.org", "subject": "Good morning"},
    good_for="next",
)
@app.task("sample.send_email")
def send_email(to: str, subject: str, body: str = "") -> TaskResult[Receipt, TaskError]:
    """Expected failures: return a TaskError with your own error code."""
    if "@" not in to:
        return TaskResult(err=TaskError(error_code="ADDRESS_REFUSED", message="the address has no @"))
    return TaskResult(ok=Receipt(to=to, characters=len(subject) + len(body)))


@app.task("sample.resize", priority=50)
def resize(image: Size, longest_side: int = 640) -> TaskResult[Size, TaskError]:
    """Typed arguments and results: the sender passes a `Size` and gets one back."""
    scale = min(1.0, longest_side / max(image.width, image.height))
    return TaskResult(ok=Size(width=round(image.width * scale), height=round(image.height * scale)))


@app.task(
    "sample.charge_card",
    exception_mapper={ConnectionError: "BANK_UNREACHABLE"},
    retry_policy=RetryPolicy.exponential(1, max_retries=5, auto_retry_for=["BANK_UNREACHABLE"]),
)
def charge_card(amount: Decimal, succeeds_on_attempt: int = 3) -> TaskResult[Decimal, TaskError]:
    """Retries: an exception is mapped to an error code, and the policy retries that code."""
    running = current_task()
    attempt = running.attempt if running else 1
    if attempt < succeeds_on_attempt:
        raise ConnectionError(f"attempt {attempt} of {succeeds_on_attempt}")
    return TaskResult(ok=amount)


@app.task("sample.make_report", timeout_ms=60_000)
def make_report(seconds: float = 5.0) -> TaskResult[str, TaskError]:
    """Timeout: after a minute the task is stopped and fails with TASK_TIMEOUT."""
    time.sleep(seconds)
    return TaskResult(ok=f"report made in {seconds} s")


@app.scheduled(IntervalSchedule(seconds=10), name="exchange-rate", kwargs={"currency": "EUR"}, overlap="skip")
@app.task("sample.fetch_rate")
async def fetch_rate(currency: str, latency_s: float = 0.1) -> TaskResult[Decimal, TaskError]:
    """Async task: one child process runs many of these concurrently."""
    await asyncio.sleep(latency_s)
    return TaskResult(ok=Decimal(sum(currency.encode())) / 100)


@app.task(
    "sample.import_catalogue",
    flags=["infrastructure_resilient"],
    retry_policy=RetryPolicy.fixed([10, 60, 300], auto_retry_for=[OperationalErrorCode.WORKER_CRASHED]),
)
def import_catalogue(pages: int, seconds_per_page: float = 1.0) -> TaskResult[int, TaskError]:
    """Long and repeatable: the flag selects longer stale thresholds, the policy retries it after a crash."""
    for _ in range(pages):
        time.sleep(seconds_per_page)
    return TaskResult(ok=pages)


@app.task("sample.crash")
def crash() -> TaskResult[None, TaskError]:
    """Crash: kills its process like a segmentation fault would; the worker replaces the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


@app.task("sample.make_gallery")
def make_gallery(title: str, workflow_ctx: WorkflowContext | None = None) -> TaskResult[str, TaskError]:
    """Workflow context: reads the results of other nodes."""
    if workflow_ctx is None:
        return TaskResult(ok=f"{title}: empty")
    sizes = [workflow_ctx.result_for(NodeKey[Size](node_id)).ok_value for node_id in THUMBNAILS]
    return TaskResult(ok=f"{title}: " + ", ".join(f"{size.width} x {size.height}" for size in sizes))


@app.task("sample.agree_on_rate")
def agree_on_rate(
    one: TaskResult[Decimal, TaskError] | None = None,
    two: TaskResult[Decimal, TaskError] | None = None,
    three: TaskResult[Decimal, TaskError] | None = None,
) -> TaskResult[Decimal, TaskError]:
    """Quorum: uses the results that are available when it runs."""
    rates = [result.ok_value for result in (one, two, three) if result is not None and result.is_ok()]
    return TaskResult(ok=median(rates))


THUMBNAILS = {"small": 160, "medium": 640, "large": 1600, "huge": 3200}

# Fan-out and fan-in: four tasks in parallel, then one that needs all their results.
_sizes = [
    resize.node(node_id=node_id)(image=Size(width=4000, height=3000), longest_side=side)
    for node_id, side in THUMBNAILS.items()
]
_gallery = make_gallery.node(waits_for=_sizes, workflow_ctx_from=_sizes)(title="holidays")
gallery = app.workflow("gallery", [*_sizes, _gallery], output=_gallery, definition_key="sample.gallery.v1")
# A workflow on a schedule: every minute, one run at a time.
app.add_schedules(
    [TaskSchedule(name="gallery", workflow=gallery, pattern=CronSchedule.parse("* * * * *"), overlap="skip")]
)

# Quorum: continues after two of three results, without waiting for the slowest.
_one = fetch_rate.node(node_id="first-bank")(currency="EUR")
_two = fetch_rate.node(node_id="second-bank")(currency="EUR", latency_s=0.3)
_three = fetch_rate.node(node_id="third-bank")(currency="EUR", latency_s=3.0)
_agreed = agree_on_rate.node(join="quorum", min_success=2)(
    one=from_node(_one), two=from_node(_two), three=from_node(_three)
)
rate = app.workflow("rate", [_one, _two, _three, _agreed], output=_agreed, definition_key="sample.rate.v1")


class Checkout(WorkflowDefinition[Decimal]):
    """A workflow that other workflows use as a sub-workflow."""

    name = "checkout"
    definition_key = "sample.checkout.v1"

    charge = charge_card.node()(amount=Decimal("9.99"), succeeds_on_attempt=2)
    receipt = send_email.node(waits_for=[charge])(to="ada@example.org", subject="Your receipt")

    class Meta:
        output = NodeKey[Decimal]("charge")


_checkout = SubWorkflowNode(Checkout, node_id="checkout")
_report = make_report.node(waits_for=[_checkout])(seconds=1.0)
order = app.workflow("order", [_checkout, _report], output=_report, definition_key="sample.order.v1")

# Pauses at the first failure until an operator runs `horsies workflow resume` or `cancel`.
_invalid = send_email.node(node_id="invalid-address")(to="nobody", subject="News")
_valid = send_email.node(waits_for=[_invalid])(to="ada@example.org", subject="News")
newsletter = app.workflow(
    "newsletter", [_invalid, _valid], on_error=OnError.PAUSE, definition_key="sample.newsletter.v1"
)

# Fails at the first failure, the default; what depends on the failed node is skipped.
_rejected = send_email.node(node_id="rejected-address")(to="nobody", subject="Offer")
_reminder = send_email.node(waits_for=[_rejected])(to="ada@example.org", subject="Reminder")
campaign = app.workflow("campaign", [_rejected, _reminder], definition_key="sample.campaign.v1")
