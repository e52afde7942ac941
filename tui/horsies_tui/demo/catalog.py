"""The fixed parts of the demo system: queues, workers, kinds of tasks and workflow definitions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from horsies.model.task import TaskStatus

STALE_AFTER: Final = {TaskStatus.CLAIMED: timedelta(minutes=2), TaskStatus.RUNNING: timedelta(minutes=5)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """Tasks of one name: how often they are sent, how long they run, how they fail."""

    name: str
    queue: str
    weight: int
    run_s: float
    failure_rate: float
    error_code: str
    message: str
    kwargs_json: str
    max_retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorker:
    id: UUID
    hostname: str
    pid: int
    processes: int
    queues: tuple[str, ...]
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQueue:
    name: str
    priority: int
    cap: int | None


QUEUES: Final = (
    DemoQueue(name="critical", priority=1, cap=16),
    DemoQueue(name="mail", priority=10, cap=60),
    DemoQueue(name="default", priority=50, cap=None),
    DemoQueue(name="scraping", priority=60, cap=16),
    DemoQueue(name="reports", priority=90, cap=4),
)

KINDS: Final = (
    TaskKind(
        name="mail.send",
        queue="mail",
        weight=40,
        run_s=1.2,
        failure_rate=0.08,
        error_code="SMTP_TIMEOUT",
        message="TimeoutError: SMTP read timed out (30s)",
        kwargs_json='{"to": "ada@example.org", "template": "welcome", "api_token": "s3cret"}',
    ),
    TaskKind(
        name="mail.digest",
        queue="mail",
        weight=6,
        run_s=2.0,
        failure_rate=0.05,
        error_code="UNHANDLED_EXCEPTION",
        message="KeyError: 'plan'   app/mail.py:88 in build_digest",
        kwargs_json='{"user_id": 88213}',
        max_retries=0,
    ),
    TaskKind(
        name="scrape.page",
        queue="scraping",
        weight=14,
        run_s=3.0,
        failure_rate=0.04,
        error_code="HTTP_503",
        message="503 Service Unavailable: list[/foo] is not markup",
        kwargs_json='{"url": "https://example.org/p/1"}',
    ),
    TaskKind(
        name="etl.load",
        queue="default",
        weight=20,
        run_s=6.0,
        failure_rate=0.01,
        error_code="DEADLOCK_DETECTED",
        message="deadlock detected",
        kwargs_json='{"table": "orders", "day": "2026-11-14"}',
    ),
    TaskKind(
        name="billing.charge",
        queue="critical",
        weight=10,
        run_s=0.6,
        failure_rate=0.01,
        error_code="CARD_DECLINED",
        message="card declined by issuer",
        kwargs_json='{"invoice": 5521, "authorization": "tok_1"}',
        max_retries=5,
    ),
    TaskKind(
        name="report.build",
        queue="reports",
        weight=2,
        run_s=20.0,
        failure_rate=0.02,
        error_code="UNHANDLED_EXCEPTION",
        message="MemoryError",
        kwargs_json='{"month": "2026-10"}',
        max_retries=1,
    ),
)


def _worker_id(number: int) -> UUID:
    return UUID(f"019a8c00-0000-7000-8000-0000{number:08x}")


WORKERS: Final = (
    DemoWorker(id=_worker_id(0xA1), hostname="host-1", pid=901, processes=12, queues=("critical", "mail", "default")),
    DemoWorker(id=_worker_id(0xA2), hostname="host-2", pid=877, processes=12, queues=("critical", "mail", "default")),
    DemoWorker(id=_worker_id(0xA4), hostname="host-2", pid=1402, processes=8, queues=("default", "scraping")),
    DemoWorker(id=_worker_id(0xA7), hostname="host-3", pid=4121, processes=8, queues=("mail", "reports"), is_lost=True),
)

KINDS_BY_NAME: Final = {kind.name: kind for kind in KINDS}
LOST_WORKER: Final = next(worker for worker in WORKERS if worker.is_lost)


# Workflow definitions


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """A node: a kind of task, or another workflow. `after` are the indexes of its dependencies."""

    name: str
    after: tuple[int, ...] = ()
    join: str = "all"
    min_success: int | None = None
    is_workflow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorkflow:
    name: str
    nodes: tuple[DemoNode, ...]
    output: int | None = None


DIGEST: Final = DemoWorkflow(
    name="digest-run",
    nodes=(
        *(DemoNode(name="scrape.page") for _ in range(3)),
        DemoNode(name="etl.load", after=(0, 1, 2)),
        DemoNode(name="etl.load", after=(0, 2), join="any"),
        DemoNode(name="mail.send", after=(3,)),
        DemoNode(name="mail.send", after=(4,)),
        DemoNode(name="etl.load", after=(0, 1, 2), join="quorum", min_success=2),
        DemoNode(name="mail.digest", after=(6, 7)),
        DemoNode(name="report.build", after=(5, 8)),
    ),
    output=9,
)

ONBOARD: Final = DemoWorkflow(
    name="onboard",
    nodes=(
        DemoNode(name="billing.charge"),
        DemoNode(name="mail.send", after=(0,)),
        DemoNode(name="etl.load", after=(0,)),
        DemoNode(name="mail.digest", after=(1, 2)),
    ),
    output=3,
)

CRAWL: Final = DemoWorkflow(
    name="crawl",
    nodes=(
        DemoNode(name="etl.load"),
        *(DemoNode(name="scrape.page", after=(0,)) for _ in range(180)),
        DemoNode(name="etl.load", after=tuple(range(1, 181)), join="quorum", min_success=150),
        DemoNode(name="mail.send", after=(181,)),
    ),
    output=182,
)

NIGHTLY: Final = DemoWorkflow(
    name="etl-night",
    nodes=(
        *(DemoNode(name="etl.load") for _ in range(6)),
        DemoNode(name="crawl", after=(0, 1), is_workflow=True),
        DemoNode(name="etl.load", after=(2, 3, 4, 5)),
        DemoNode(name="etl.load", after=(6, 7)),
        DemoNode(name="mail.digest", after=(8,)),
    ),
    output=9,
)

WORKFLOWS_BY_NAME: Final = {workflow.name: workflow for workflow in (DIGEST, ONBOARD, CRAWL, NIGHTLY)}
