"""What the fake system consists of: queues, workers, kinds of tasks, schedules, workflows and its first runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import time, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from horsies.model.retention import RetentionCategory
from horsies.model.settings.patterns import DailySchedule, HourlySchedule, IntervalSchedule, Weekday, WeeklySchedule
from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.reads.overview import QueueRow
from horsies_ops.reads.workers import WorkerRow
from horsies_ops.reads.workflows import NodeRow

RowT = TypeVar("RowT")
_EMPTY_VALUES: Final = {"int": 0, "bool": False, "timedelta": timedelta(0), "Sequence[str]": ()}


def make_row(row_type: type[RowT], like: object = None, /, **known: object) -> RowT:
    """Create a row from `known` values, fields of the same name in `like`, and 0, False, () or None for the rest."""
    types = {field.name: str(field.type) for field in fields(row_type)}  # pyright: ignore[reportArgumentType]
    values: dict[str, Any] = {name: getattr(like, name, _EMPTY_VALUES.get(type_)) for name, type_ in types.items()}
    return row_type(**(values | known))


QUEUES: Final = (
    make_row(QueueRow, name="critical", priority=1, max_concurrency=16),
    make_row(QueueRow, name="mail", priority=10, max_concurrency=60),
    make_row(QueueRow, name="default", priority=50),
    make_row(QueueRow, name="scraping", priority=60, max_concurrency=16),
    make_row(QueueRow, name="imports", priority=70),
    make_row(QueueRow, name="reports", priority=90, max_concurrency=4),
)
PRIORITIES: Final = {queue.name: queue.priority for queue in QUEUES}


def _worker(number: int, host: str, pid: int, processes: int, *queues: str, **fields: object) -> WorkerRow:
    values: dict[str, object] = {
        "worker_id": UUID(f"019a8c00-0000-7000-8000-0000{number:08x}"),
        "hostname": host,
        "pid": pid,
        "processes": processes,
        "queues": queues,
        "version": "0.4.1",
        "state": "running",
        "listener": "live",
        "heartbeat_age": timedelta(seconds=2),
    }
    return make_row(WorkerRow, **(values | fields))


LOST_WORKER: Final = _worker(
    0xA7, "host-3", 4121, 8, "mail", "reports", state="lost", heartbeat_age=timedelta(seconds=370)
)
WORKERS: Final = (
    _worker(0xA1, "host-1", 901, 12, "critical", "mail", "default"),
    _worker(0xA2, "host-2", 877, 12, "critical", "mail", "default"),
    _worker(0xA4, "host-2", 1402, 16, "default", "scraping"),
    _worker(0xA5, "host-4", 2210, 4, "default", "imports", heartbeat_age=timedelta(seconds=95)),
    LOST_WORKER,
)
"""The age of a heartbeat stays the same; that of the lost worker counts from the start of the system."""
HEALTHY_WORKERS: Final = WORKERS[:3]
HOT_WORKER: Final = WORKERS[2]


@dataclass(frozen=True, slots=True)
class TaskKind:
    """Tasks of one name: how often they are sent, how long they run and how often they fail."""

    name: str
    queue: str
    weight: int
    """Its share of all sends."""
    run_s: float
    failure_rate: float
    max_retries: int
    kwargs_json: str
    error: tuple[str, str]
    """Code and message."""


_MAIL: Final = '{"to": "ada@example.org", "template": "welcome", "api_token": "s3cret"}'
_SMTP: Final = ("SMTP_TIMEOUT", "TimeoutError: SMTP read timed out (30s)")
_KEY_ERROR: Final = ("UNHANDLED_EXCEPTION", "KeyError: 'plan'   app/mail.py:88 in build_digest")
_HTTP: Final = ("HTTP_503", "503 Service Unavailable: list[/foo] is not markup")
_DEADLOCK: Final = ("DEADLOCK_DETECTED", "deadlock detected")
_DECLINED: Final = ("CARD_DECLINED", "card declined by issuer")
_PAGE, _ORDERS = '{"url": "https://example.org/p/1"}', '{"table": "orders", "day": "2026-11-14"}'
_INVOICE: Final = '{"invoice": 5521, "authorization": "tok_1"}'
KINDS: Final = (
    TaskKind("mail.send", "mail", 40, 1.2, 0.08, 3, _MAIL, _SMTP),
    TaskKind("mail.digest", "mail", 6, 2.0, 0.05, 0, '{"user_id": 88213}', _KEY_ERROR),
    TaskKind("scrape.page", "scraping", 14, 3.0, 0.04, 3, _PAGE, _HTTP),
    TaskKind("etl.load", "default", 20, 6.0, 0.01, 3, _ORDERS, _DEADLOCK),
    TaskKind("billing.charge", "critical", 10, 0.6, 0.01, 5, _INVOICE, _DECLINED),
    TaskKind(
        "report.build", "reports", 2, 20.0, 0.02, 1, '{"month": "2026-10"}', ("UNHANDLED_EXCEPTION", "MemoryError")
    ),
)
KINDS_BY_NAME: Final = {kind.name: kind for kind in KINDS}
RETRY_OPTIONS: Final = (
    '{"retry_policy": {"max_retries": 3, "intervals": [60, 60, 60], "auto_retry_for": ["WORKER_CRASHED"]}}'
)
FLAGS: Final = {"billing.charge": '{"audited": true}'}
"""Flags as JSON by task name; the others have none."""

SCHEDULES: Final = (
    ("rates", "scrape.page", HourlySchedule(minute=2), "UTC", -151, 3_751, 612),
    ("digest", "mail.digest", IntervalSchedule(minutes=15), "UTC", 628, 272, 9_120),
    ("nightly-etl", "etl.load", DailySchedule(time=time(2, 0)), "UTC", 50_129, 36_271, 311),
    (
        "purge-tokens",
        "billing.charge",
        WeeklySchedule(days=(Weekday.MONDAY,), time=time(4, 30)),
        "Europe/Oslo",
        145_529,
        459_271,
        44,
    ),
    ("legacy-sync", "scrape.page", IntervalSchedule(minutes=5), "UTC", None, 1_036_800, 1_002),
)
"""Name, task, pattern, time zone, seconds to the next run (None: disabled) and since the last, and number of runs."""

SILENT_TASKS: Final = (
    ("mail.send", TaskStatus.RUNNING, 680, LOST_WORKER),
    ("report.build", TaskStatus.RUNNING, 542, LOST_WORKER),
    ("scrape.page", TaskStatus.RUNNING, 464, LOST_WORKER),
    ("mail.send", TaskStatus.CLAIMED, 160, LOST_WORKER),
    ("mail.send", TaskStatus.CLAIMED, 131, LOST_WORKER),
    ("etl.load", TaskStatus.RUNNING, 331, HOT_WORKER),
    ("etl.load", TaskStatus.RUNNING, 302, HOT_WORKER),
    ("etl.load", TaskStatus.RUNNING, 281, HOT_WORKER),
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


def node(name: str, *after: int, join: str = "all", min_success: int | None = None) -> NodeRow:
    """A node that runs the task or sub-workflow `name` after the nodes with these indexes."""
    kind, status = KINDS_BY_NAME.get(name), WorkflowTaskStatus.PENDING
    known = {"name": name, "status": status, "join": join, "min_success": min_success, "dependencies": after}
    return make_row(NodeRow, kind, **known, is_subworkflow=kind is None)


WORKFLOWS: Final = {
    "digest-run": (
        *(node("scrape.page") for _ in range(3)),
        node("etl.load", 0, 1, 2),
        node("etl.load", 0, 2, join="any"),
        node("mail.send", 3),
        node("mail.send", 4),
        node("etl.load", 0, 1, 2, join="quorum", min_success=2),
        node("mail.digest", 6, 7),
        node("report.build", 5, 8),
    ),
    "onboard": (node("billing.charge"), node("mail.send", 0), node("etl.load", 0), node("mail.digest", 1, 2)),
    "crawl": (
        node("etl.load"),
        *(node("scrape.page", 0) for _ in range(180)),
        node("etl.load", *range(1, 181), join="quorum", min_success=150),
        node("mail.send", 181),
    ),
    "etl-night": (
        *(node("etl.load") for _ in range(6)),
        node("crawl", 0, 1),
        node("etl.load", 2, 3, 4, 5),
        node("etl.load", 6, 7),
        node("mail.digest", 8),
    ),
}
"""Nodes by workflow; the last one is its output."""

NODE_STATUSES: Final = {status[0]: status for status in WorkflowTaskStatus}
"""By first letter; R is RUNNING, which comes after READY."""
SEEDED_RUNS: Final = (
    ("etl-night", 93_600, "CCPPPPPPPP", WorkflowStatus.PAUSED),
    ("onboard", 2_400, "CCCC", WorkflowStatus.COMPLETED),
    ("onboard", 1_900, "CCSS", WorkflowStatus.CANCELLED),
    ("etl-night", 1_320, "CCCCCCRCPP", WorkflowStatus.RUNNING),
    ("onboard", 700, "CCCC", WorkflowStatus.COMPLETED),
    ("digest-run", 180, "CFCSCSCCCS", WorkflowStatus.FAILED),
    ("digest-run", 95, "CFRPCPCPPP", WorkflowStatus.RUNNING),
    ("onboard", 41, "CCRP", WorkflowStatus.RUNNING),
    ("onboard", 9, "RPPP", WorkflowStatus.RUNNING),
)
"""Workflow, seconds since the start, first letters of the nodes' statuses, and status."""
SEEDED_SUB_RUN: Final = ("crawl", 1_300, "C" + "C" * 130 + "F" * 6 + "R" * 4 + "E" * 40 + "PP", WorkflowStatus.RUNNING)
"""The sub-workflow of the only seeded node that runs one."""
