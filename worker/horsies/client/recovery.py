"""Manual recovery: lists stale and expired tasks, and recovers them with the same decisions as the reaper.

The caller's threshold applies to every worker and to the plain age of the last heartbeat, without outage grace.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from horsies.client.broker import PostgresBroker
from horsies.errors import BrokerError, BrokerErrorCode, HorsiesError
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions, check_threshold
from horsies.model.task import TaskStatus
from horsies.recovery.report import SweepStatus, SweepStep
from horsies.recovery.sweep import Sweep, SweepAudit
from horsies.store.operators import AuditEntry, AuditProgress, Operator, record_audit
from horsies.store.recovery import EXPIRY_BATCH, PAGE_SIZE, OverdueRow, RecoveryStore, StaleRow, StaleScan
from horsies.workflows.healing import heal


def parse_threshold(number: float, *, unit: timedelta) -> timedelta:
    """A caller's threshold as a duration; raises ValueError if it is not a number above 0 or too large."""
    try:
        threshold = number * unit
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the stale threshold must be a number above 0, got {number!r}") from None
    check_threshold(threshold, "the stale threshold")
    return threshold


async def stale_tasks(broker: PostgresBroker, threshold: timedelta) -> list[dict[str, Any]]:
    """RUNNING tasks without a heartbeat for `threshold`, longest silent first."""
    scan = StaleScan(status=TaskStatus.RUNNING, threshold=threshold, include_on_hold=True)
    rows: list[StaleRow] = []
    async with _recovery_store(broker) as store:
        while len(page := await store.stale(scan, after=rows[-1].id if rows else None)) == PAGE_SIZE:
            rows += page
    stale = [row for row in (*rows, *page) if row.now - row.last_heartbeat_at >= threshold]
    return [_stale_task(row) for row in sorted(stale, key=lambda row: row.last_heartbeat_at)]


async def expired_tasks(broker: PostgresBroker) -> list[dict[str, Any]]:
    """PENDING tasks past their good_until, longest expired first."""
    rows: list[OverdueRow] = []
    async with _recovery_store(broker) as store:
        while len(page := await store.overdue(after=rows[-1] if rows else None)) == EXPIRY_BATCH:
            rows += page
    return [_expired_task(row) for row in (*rows, *page)]


async def run_sweep_step(broker: PostgresBroker, step: SweepStep, threshold: timedelta | None = None) -> int:
    """Run one step of a sweep; returns how many tasks changed state. Raises SWEEP_BUSY while another sweep runs."""
    # Forced: the caller's threshold may be shorter than the heartbeat interval, which a sweep would refuse.
    options = SweepOptions(sweep_threshold=threshold, force=True)
    dependencies = broker.recovery_dependencies
    observer = OperatorObserver(local_config=dependencies.local_config)
    async with _recovery_store(broker) as store:
        audit = SweepAudit(store.database, _audit_entry(step, threshold))
        report = await Sweep(
            store.database, options, observer=observer, hooks=dependencies.hooks(), steps={step}, record=audit
        ).run()
    if report.status is SweepStatus.BUSY:
        raise BrokerError(
            "another sweep is running", code=BrokerErrorCode.SWEEP_BUSY, retryable=True, hint="try again in a minute"
        )
    return sum(task.changes_state and task.applied for task in report.tasks)


async def heal_workflows(broker: PostgresBroker) -> int:
    """Heal stuck runs and cancel orphaned tasks; returns how many workflows this concerned."""
    async with _recovery_store(broker) as store:
        healed = await heal(store.database, broker.recovery_dependencies.definitions)
        if healed:
            entry, progress = (
                _audit_entry(SweepStep.WORKFLOWS),
                AuditProgress(matched=len(healed), affected=len(healed)),
            )
            await store.database.run(lambda transaction: record_audit(transaction, entry, progress))
    return len({run.workflow_id for run in healed if run.workflow_id is not None})


def _audit_entry(step: SweepStep, threshold: timedelta | None = None) -> AuditEntry:
    """The audit entry of a manual recovery: these calls change tasks as an operator's sweep does."""
    filters: dict[str, object] = {"step": str(step)}
    if threshold is not None:
        filters["threshold_s"] = threshold.total_seconds()
    operator = Operator.current(via="library")
    return AuditEntry(operator=operator, action="sweep", reason=None, filter=filters, matched=0)


@asynccontextmanager
async def _recovery_store(broker: PostgresBroker) -> AsyncGenerator[RecoveryStore]:
    """The store; any other HorsiesError raised inside becomes a BrokerError with code RECOVERY_FAILED."""
    try:
        yield RecoveryStore((await broker.session()).database)
    except BrokerError:
        raise
    except HorsiesError as error:
        raise BrokerError(error.message, code=BrokerErrorCode.RECOVERY_FAILED, hint=error.help_text) from error


def _stale_task(row: StaleRow) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "task_name": row.task_name,
        "queue_name": row.queue_name,
        "worker_id": None if row.owner_id is None else str(row.owner_id),
        "worker_hostname": row.worker_hostname,
        "worker_pid": row.worker_pid,
        "worker_process_name": row.worker_process_name,
        "started_at": row.started_at,
        "last_heartbeat": row.last_heartbeat_at,
        "claim_token": row.claim_token,
        "retry_count": row.retry_count,
        "crash_count": row.crash_count,
    }


def _expired_task(row: OverdueRow) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "task_name": row.task_name,
        "queue_name": row.queue_name,
        "priority": row.priority,
        "sent_at": row.sent_at,
        "enqueued_at": row.enqueued_at,
        "good_until": row.good_until,
        "expired_for": row.now - row.good_until,
    }
