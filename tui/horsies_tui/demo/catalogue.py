"""What the invented system is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from horsies.model.task import TaskStatus

STALE_AFTER: Final = {TaskStatus.CLAIMED: timedelta(minutes=2), TaskStatus.RUNNING: timedelta(minutes=5)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Tasks of one name: how often they come, how long they take, how they fail."""

    name: str
    queue: str
    share: int
    run_s: float
    failures: float
    error: str
    message: str
    kwargs_json: str
    max_retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker."""

    id: UUID
    hostname: str
    pid: int
    processes: int
    queues: tuple[str, ...]
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    name: str
    priority: int
    cap: int | None


QUEUES: Final = (
    Queue(name="critical", priority=1, cap=16),
    Queue(name="mail", priority=10, cap=60),
    Queue(name="default", priority=50, cap=None),
    Queue(name="scraping", priority=60, cap=16),
    Queue(name="reports", priority=90, cap=4),
)

KINDS: Final = (
    Kind(
        name="mail.send", queue="mail", share=40, run_s=1.2, failures=0.08, error="SMTP_TIMEOUT",
        message="TimeoutError: SMTP read timed out (30s)",
        kwargs_json='{"to": "ada@example.org", "template": "welcome", "api_token": "s3cret"}',
    ),
    Kind(
        name="mail.digest", queue="mail", share=6, run_s=2.0, failures=0.05, error="UNHANDLED_EXCEPTION",
        message="KeyError: 'plan'   app/mail.py:88 in build_digest", kwargs_json='{"user_id": 88213}', max_retries=0,
    ),
    Kind(
        name="scrape.page", queue="scraping", share=14, run_s=3.0, failures=0.04, error="HTTP_503",
        message="503 Service Unavailable: list[/foo] is not markup", kwargs_json='{"url": "https://example.org/p/1"}',
    ),
    Kind(
        name="etl.load", queue="default", share=20, run_s=6.0, failures=0.01, error="DEADLOCK_DETECTED",
        message="deadlock detected", kwargs_json='{"table": "orders", "day": "2026-11-14"}',
    ),
    Kind(
        name="billing.charge", queue="critical", share=10, run_s=0.6, failures=0.01, error="CARD_DECLINED",
        message="card declined by issuer", kwargs_json='{"invoice": 5521, "authorization": "tok_1"}', max_retries=5,
    ),
    Kind(
        name="report.build", queue="reports", share=2, run_s=20.0, failures=0.02, error="UNHANDLED_EXCEPTION",
        message="MemoryError", kwargs_json='{"month": "2026-10"}', max_retries=1,
    ),
)  # fmt: skip


def _worker(number: int) -> UUID:
    return UUID(f"019a8c00-0000-7000-8000-0000{number:08x}")


WORKERS: Final = (
    Member(id=_worker(0xA1), hostname="host-1", pid=901, processes=12, queues=("critical", "mail", "default")),
    Member(id=_worker(0xA2), hostname="host-2", pid=877, processes=12, queues=("critical", "mail", "default")),
    Member(id=_worker(0xA4), hostname="host-2", pid=1402, processes=8, queues=("default", "scraping")),
    Member(id=_worker(0xA7), hostname="host-3", pid=4121, processes=8, queues=("mail", "reports"), is_gone=True),
)
