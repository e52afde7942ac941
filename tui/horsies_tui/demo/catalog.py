"""What the demo system consists of: queues, workers, kinds of tasks, schedules, workflows and its first runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from horsies.model.retention import RetentionCategory
from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.reads.workflows import NodeRow

RowT = TypeVar("RowT")
_EMPTY_VALUES: Final = {"int": 0, "bool": False, "timedelta": timedelta(0)}


def make_row(row_type: type[RowT], like: object = None, /, **known: object) -> RowT:
    """Create a row from `known` values, fields of the same name in `like`, and 0, False or None for the rest."""
    types = {field.name: str(field.type) for field in fields(row_type)}  # pyright: ignore[reportArgumentType]
    values: dict[str, Any] = {name: getattr(like, name, _EMPTY_VALUES.get(type_)) for name, type_ in types.items()}
    return row_type(**(values | known))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQueue:
    name: str
    priority: int
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class DemoWorker:
    worker_id: UUID
    hostname: str
    pid: int
    processes: int
    queues: tuple[str, ...]
    state: str
    silence_s: float
    """Seconds since its last heartbeat; for a lost worker, when the demo starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """Tasks of one name: how often they are sent, how long they run and how often they fail."""

    name: str
    queue: str
    weight: int
    """Its share of all sends."""
    run_s: float
    failure_rate: float
    max_retries: int = 3


def _worker(
    number: int, hostname: str, pid: int, processes: int, *queues: str, state: str = "running", silence_s: float = 2
) -> DemoWorker:
    worker_id = UUID(f"019a8c00-0000-7000-8000-0000{number:08x}")
    return DemoWorker(worker_id, hostname, pid, processes, queues, state, silence_s)


QUEUES: Final = (
    DemoQueue(name="critical", priority=1, max_concurrency=16),
    DemoQueue(name="mail", priority=10, max_concurrency=60),
    DemoQueue(name="default", priority=50),
    DemoQueue(name="scraping", priority=60, max_concurrency=16),
    DemoQueue(name="imports", priority=70),
    DemoQueue(name="reports", priority=90, max_concurrency=4),
)
LOST_WORKER: Final = _worker(0xA7, "host-3", 4121, 8, "mail", "reports", state="lost", silence_s=370)
WORKERS: Final = (
    _worker(0xA1, "host-1", 901, 12, "critical", "mail", "default"),
    _worker(0xA2, "host-2", 877, 12, "critical", "mail", "default"),
    _worker(0xA4, "host-2", 1402, 16, "default", "scraping"),
    _worker(0xA5, "host-4", 2210, 4, "default", "imports", silence_s=95),
    LOST_WORKER,
)
PRIORITIES: Final = {queue.name: queue.priority for queue in QUEUES}
HEALTHY_WORKERS: Final = WORKERS[:3]
HOT_WORKER: Final = WORKERS[2]

KINDS: Final = (
    TaskKind(name="mail.send", queue="mail", weight=40, run_s=1.2, failure_rate=0.08),
    TaskKind(name="mail.digest", queue="mail", weight=6, run_s=2.0, failure_rate=0.05, max_retries=0),
    TaskKind(name="scrape.page", queue="scraping", weight=14, run_s=3.0, failure_rate=0.04),
    TaskKind(name="etl.load", queue="default", weight=20, run_s=6.0, failure_rate=0.01),
    TaskKind(name="billing.charge", queue="critical", weight=10, run_s=0.6, failure_rate=0.01, max_retries=5),
    TaskKind(name="report.build", queue="reports", weight=2, run_s=20.0, failure_rate=0.02, max_retries=1),
)
KINDS_BY_NAME: Final = {kind.name: kind for kind in KINDS}
ARGUMENTS: Final = {
    "mail.send": '{"to": "ada@example.org", "template": "welcome", "api_token": "s3cret"}',
    "mail.digest": '{"user_id": 88213}',
    "scrape.page": '{"url": "https://example.org/p/1"}',
    "etl.load": '{"table": "orders", "day": "2026-11-14"}',
    "billing.charge": '{"invoice": 5521, "authorization": "tok_1"}',
    "report.build": '{"month": "2026-10"}',
}
ERRORS: Final = {
    "mail.send": ("SMTP_TIMEOUT", "TimeoutError: SMTP read timed out (30s)"),
    "mail.digest": ("UNHANDLED_EXCEPTION", "KeyError: 'plan'   app/mail.py:88 in build_digest"),
    "scrape.page": ("HTTP_503", "503 Service Unavailable: list[/foo] is not markup"),
    "etl.load": ("DEADLOCK_DETECTED", "deadlock detected"),
    "billing.charge": ("CARD_DECLINED", "card declined by issuer"),
    "report.build": ("UNHANDLED_EXCEPTION", "MemoryError"),
}
"""Error code and message by task name."""
RETRY_OPTIONS: Final = (
    '{"retry_policy": {"max_retries": 3, "intervals": [60, 60, 60], "auto_retry_for": ["WORKER_CRASHED"]}}'
)

SCHEDULES: Final = (
    ("digest", "mail.digest", "interval minutes=15", "UTC", 628, 272, 9_120),
    ("nightly-etl", "etl.load", "daily time=02:00", "UTC", 50_129, 36_271, 311),
    ("purge-tokens", "billing.charge", "weekly days=['monday'] time=04:30", "Europe/Oslo", 145_529, 459_271, 44),
    ("legacy-sync", "scrape.page", "interval minutes=5", "UTC", None, 1_036_800, 1_002),
)
"""Name, task, pattern, time zone, seconds to the next run (None: disabled) and since the last, and number of runs."""

SILENT_TASKS: Final = (
    ("mail.send", TaskStatus.RUNNING, 680, LOST_WORKER),
    ("report.build", TaskStatus.RUNNING, 542, LOST_WORKER),
    ("scrape.page", TaskStatus.RUNNING, 464, LOST_WORKER),
    ("mail.send", TaskStatus.CLAIMED, 160, LOST_WORKER),
    ("mail.send", TaskStatus.CLAIMED, 131, LOST_WORKER),
    ("etl.load", TaskStatus.RUNNING, 331, WORKERS[2]),
    ("etl.load", TaskStatus.RUNNING, 302, WORKERS[2]),
    ("etl.load", TaskStatus.RUNNING, 281, WORKERS[2]),
)
"""Tasks without heartbeats: name, status, seconds of silence and owner."""

EXPIRED_ROWS: Final = {
    RetentionCategory.HEARTBEATS: 88_210,
    RetentionCategory.WORKER_STATES: 51_004,
    RetentionCategory.TASKS: 412_377,
    RetentionCategory.EVENTS: 12_120,
}
"""Rows past their retention window, by category."""
TABLES: Final = (
    ("horsies_tasks", 2_254_857_830, 1_600_000, 64_000),
    ("horsies_heartbeats", 325_058_560, 90_000, 55_000),
)
"""Name, bytes, rows and dead rows."""


# Workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorkflow:
    name: str
    nodes: tuple[NodeRow, ...]
    output: int | None = None


def node(name: str, *after: int, join: str = "all", min_success: int | None = None) -> NodeRow:
    """A node that runs the task or sub-workflow `name` after the nodes with these indexes."""
    kind = KINDS_BY_NAME.get(name)
    return make_row(
        NodeRow,
        kind,
        name=name,
        status=WorkflowTaskStatus.PENDING,
        join=join,
        min_success=min_success,
        dependencies=after,
        is_subworkflow=kind is None,
    )


DIGEST: Final = DemoWorkflow(
    name="digest-run",
    nodes=(
        *(node("scrape.page") for _ in range(3)),
        node("etl.load", 0, 1, 2),
        node("etl.load", 0, 2, join="any"),
        node("mail.send", 3),
        node("mail.send", 4),
        node("etl.load", 0, 1, 2, join="quorum", min_success=2),
        node("mail.digest", 6, 7),
        node("report.build", 5, 8),
    ),
    output=9,
)
ONBOARD: Final = DemoWorkflow(
    name="onboard",
    nodes=(node("billing.charge"), node("mail.send", 0), node("etl.load", 0), node("mail.digest", 1, 2)),
    output=3,
)
CRAWL: Final = DemoWorkflow(
    name="crawl",
    nodes=(
        node("etl.load"),
        *(node("scrape.page", 0) for _ in range(180)),
        node("etl.load", *range(1, 181), join="quorum", min_success=150),
        node("mail.send", 181),
    ),
    output=182,
)
NIGHTLY: Final = DemoWorkflow(
    name="etl-night",
    nodes=(
        *(node("etl.load") for _ in range(6)),
        node("crawl", 0, 1),
        node("etl.load", 2, 3, 4, 5),
        node("etl.load", 6, 7),
        node("mail.digest", 8),
    ),
    output=9,
)
WORKFLOWS_BY_NAME: Final = {workflow.name: workflow for workflow in (DIGEST, ONBOARD, CRAWL, NIGHTLY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededRun:
    """A run started `ago_s` ago; `nodes` has the first letter of each node's status."""

    workflow: DemoWorkflow
    ago_s: float
    nodes: str
    status: WorkflowStatus = WorkflowStatus.RUNNING
    took_s: float = 0
    sub_run: SeededRun | None = None


NODE_STATUSES: Final = {status[0]: status for status in WorkflowTaskStatus}
"""By first letter; R is RUNNING, which comes after READY."""
_CRAWL_RUN: Final = SeededRun(workflow=CRAWL, ago_s=1300, nodes="C" + "C" * 130 + "F" * 6 + "R" * 4 + "E" * 40 + "PP")
SEEDED_RUNS: Final = (
    SeededRun(workflow=NIGHTLY, ago_s=93_600, nodes="CCPPPPPPPP", status=WorkflowStatus.PAUSED),
    SeededRun(workflow=ONBOARD, ago_s=2400, nodes="CCCC", status=WorkflowStatus.COMPLETED, took_s=9),
    SeededRun(workflow=ONBOARD, ago_s=1900, nodes="CCSS", status=WorkflowStatus.CANCELLED, took_s=4),
    SeededRun(workflow=NIGHTLY, ago_s=1320, nodes="CCCCCCRCPP", sub_run=_CRAWL_RUN),
    SeededRun(workflow=ONBOARD, ago_s=700, nodes="CCCC", status=WorkflowStatus.COMPLETED, took_s=11),
    SeededRun(workflow=DIGEST, ago_s=180, nodes="CFCSCSCCCS", status=WorkflowStatus.FAILED, took_s=63),
    SeededRun(workflow=DIGEST, ago_s=95, nodes="CFRPCPCPPP"),
    SeededRun(workflow=ONBOARD, ago_s=41, nodes="CCRP"),
    SeededRun(workflow=ONBOARD, ago_s=9, nodes="RPPP"),
)
