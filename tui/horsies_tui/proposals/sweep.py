"""Stale tasks with the evidence for each decision, and the proposals of sweep and cleanup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, assert_never
from uuid import UUID

import humanize

from horsies.model.recovery.decision import DecisionKind, RecoveryReason
from horsies.model.recovery.fleet import SweepOptions, Thresholds
from horsies.model.retention import CategoryCleanup
from horsies.model.task import TaskStatus
from horsies.model.task_result import OperationalErrorCode
from horsies.recovery.report import OUTAGE_GRACE, PAST_TENSE, SweepReport, SweepStatus, SweptTask
from horsies_ops.actions.plan import SINGLE_KEY_LIMIT
from horsies_ops.actions.report import ActionProgress
from horsies_ops.reads.filters import format_duration
from horsies_ops.source import DataSource
from horsies_tui.fleet import load_workers
from horsies_tui.format import format_age, format_short_age, format_time, plural, short_id
from horsies_tui.proposals.model import Confirmation, Proposal, ProposalLine, ProposalReport

if TYPE_CHECKING:
    from horsies.model.settings import RecoveryConfig
    from horsies_ops.actions.sweep import CleanupReport
    from horsies_ops.reads.tasks import TaskRecord
    from horsies_ops.reads.workers import MaintenanceStatus, WorkerRow


_STATUS_ORDER: Final = {TaskStatus.RUNNING: 0, TaskStatus.CLAIMED: 1, TaskStatus.PENDING: 2}
_AUTO_SETTINGS: Final = {
    TaskStatus.CLAIMED: "auto_requeue_stale_claimed",
    TaskStatus.RUNNING: "auto_fail_stale_running",
}
_NO_TIME: Final = timedelta(0)
_DECISION_PHRASES: Final = {
    DecisionKind.REQUEUE: "requeue it (it had not started)",
    DecisionKind.FAIL: "fail it",
    DecisionKind.EXPIRE: "expire it",
    DecisionKind.HOLD: "leave it alone",
    DecisionKind.LEAVE: "leave it alone",
}
_EFFECTS: Final = {
    DecisionKind.REQUEUE: "requeued: they had not started",
    DecisionKind.RETRY: "retried, according to their retry policy",
    DecisionKind.FAIL: "failed",
    DecisionKind.EXPIRE: "expired: their good_until has passed",
    DecisionKind.HOLD: "left alone: held by a recovery hook",
    DecisionKind.LEAVE: "left alone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCandidate:
    """A task with the recovery decision and its owner, which is None if that worker has stopped."""

    task: SweptTask
    silent_since: datetime | None
    """Its last heartbeat, or its good_until if it is overdue; None if the report has neither."""
    owner: WorkerRow | None
    due_at: datetime | None = None
    """Set for a task that is silent but not stale: when recovery decides, unless a heartbeat arrives."""

    @property
    def id(self) -> UUID:
        return self.task.task_id

    @property
    def has_live_owner(self) -> bool:
        """Silent although its worker still sends heartbeats: probably blocked or CPU-bound, and still running."""
        return self._is_only_silent and not self._has_silent_owner

    @property
    def silent_owner(self) -> WorkerRow | None:
        """Its worker, if that is silent for the task's threshold too but not yet marked lost."""
        return self.owner if self._is_only_silent and self._has_silent_owner else None

    @property
    def _is_only_silent(self) -> bool:
        is_stale = self.due_at is None and self.task.reason == RecoveryReason.HEARTBEAT_LOST
        return is_stale and self.task.state is TaskStatus.RUNNING

    @property
    def _has_silent_owner(self) -> bool:
        threshold = self.task.effective_threshold
        return self.owner is not None and threshold is not None and self.owner.heartbeat_age >= threshold

    def silence(self, now: datetime) -> timedelta | None:
        """Time since the last heartbeat; None for a task that is not claimed."""
        is_claimed = self.task.heartbeat_age is not None
        return now - self.silent_since if is_claimed and self.silent_since is not None else None

    def over_threshold(self, now: datetime) -> timedelta | None:
        """Time past its threshold; negative for a task that is not stale yet."""
        if self.due_at is not None:
            return now - self.due_at
        if self.silent_since is None:
            return None
        return now - self.silent_since - (self.task.effective_threshold or _NO_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCandidates:
    """Stale tasks, and silent tasks that become stale if they stay silent, at one moment."""

    report: SweepReport
    stale: tuple[StaleCandidate, ...]
    silent: tuple[StaleCandidate, ...]
    """The first to become stale comes first."""
    maintenance_status: MaintenanceStatus

    @property
    def thresholds(self) -> Thresholds:
        return self.report.thresholds


async def load_stale_candidates(source: DataSource, options: SweepOptions) -> StaleCandidates:
    """The tasks that a sweep with these options would find now, and those that it would find later."""
    report = await source.stale_candidates(options)
    silent = await source.silent_tasks(options)
    workers = {worker.worker_id: worker for worker in await load_workers(source)}
    status = await source.maintenance_status()
    stale_candidates = [_candidate(task, workers, status.at) for task in report.tasks]
    # A task that became stale between the two reads is listed once.
    stale_ids = {task.task_id for task in report.tasks}
    silent_candidates = [_candidate(task, workers, status.at) for task in silent if task.task_id not in stale_ids]
    return StaleCandidates(
        report=report,
        stale=tuple(sorted(stale_candidates, key=_sort_key)),
        silent=tuple(silent_candidates),
        maintenance_status=status,
    )


def _candidate(task: SweptTask, workers: Mapping[UUID, WorkerRow], now: datetime) -> StaleCandidate:
    silence = task.heartbeat_age if task.heartbeat_age is not None else task.overdue_by
    return StaleCandidate(
        task=task,
        silent_since=None if silence is None else now - silence,
        owner=None if task.owner_id is None else workers.get(task.owner_id),
        due_at=None if task.due_in is None else now + task.due_in,
    )


def _sort_key(candidate: StaleCandidate) -> tuple[int, timedelta, UUID]:
    """RUNNING first, then CLAIMED and PENDING; within each, the furthest past its threshold first."""
    task = candidate.task
    over = (task.heartbeat_age or task.overdue_by or _NO_TIME) - (task.effective_threshold or _NO_TIME)
    # The id keeps the order of equal tasks the same on every read.
    return _STATUS_ORDER[task.state], -over, task.task_id


def decision_text(candidate: StaleCandidate, now: datetime) -> str:
    """What a sweep would do, in one or two words; `? alive` if the owner still sends heartbeats."""
    return "? alive" if candidate.has_live_owner else sweep_decision_text(candidate.task, now)


def sweep_decision_text(task: SweptTask, now: datetime) -> str:
    """The decision, whether or not the owner still sends heartbeats."""
    until = "" if task.held_until is None else f" {format_age(task.held_until - now)}"
    match task.decision:
        case DecisionKind.RETRY:
            return f"retry {task.next_attempt} of {task.max_retries + 1}"
        case DecisionKind.FAIL if task.code == OperationalErrorCode.POISON_TASK:
            return "fail, poison"
        case DecisionKind.LEAVE:
            return f"{task.reason}{until}"
        case DecisionKind.HOLD:
            return f"hold{until}"
        case DecisionKind.FAIL | DecisionKind.REQUEUE | DecisionKind.EXPIRE:
            return task.decision.value
        case _:
            assert_never(task.decision)


def owner_text(candidate: StaleCandidate, now: datetime) -> str:
    """The owner, its state and the age of its last heartbeat: `000000a7 lost 6m`, `000000a4 up 3s`."""
    task, worker = candidate.task, candidate.owner
    if task.owner_id is None:
        return "-"
    if worker is None:
        return f"{short_id(task.owner_id)} {task.owner_state}"
    state = "lost" if task.owner_state == "lost" else worker.display_state
    shown = "up" if state == "running" else state
    return f"{short_id(task.owner_id)} {shown} {format_short_age(now - worker.last_heartbeat_at)}"


def evidence_lines(
    candidate: StaleCandidate, record: TaskRecord | None, maintenance_status: MaintenanceStatus, now: datetime
) -> Iterator[str]:
    """The evidence for the decision, so that an operator can check it."""
    task, worker = candidate.task, candidate.owner
    if task.state is TaskStatus.PENDING:
        yield f"not claimed by any worker; its good_until passed at {format_time(candidate.silent_since)}"
    else:
        yield _last_heartbeat_line(candidate, record)
        if worker is not None:
            yield f"worker {short_id(task.owner_id)} last seen {format_time(worker.last_heartbeat_at)}"
        else:
            yield f"worker {short_id(task.owner_id)} is {task.owner_state}"
    yield " ".join(_decision_parts(candidate, record, now))
    if candidate.has_live_owner:
        yield "its worker still sends heartbeats: the task may be blocked or busy, and still running"
    if (silent := candidate.silent_owner) is not None:
        yield f"its worker is silent too, since {format_time(silent.last_heartbeat_at)}"
    yield _automatic_sweep_line(task, maintenance_status, now)


def _last_heartbeat_line(candidate: StaleCandidate, record: TaskRecord | None) -> str:
    host = f" from child {record.worker_pid} on {record.worker_hostname}" if record and record.worker_hostname else ""
    resilient = ", resilient" if candidate.task.resilient else ""
    threshold = f"threshold {format_age(candidate.task.effective_threshold)}{resilient}"
    crashes = f", crashed {record.crash_count} times before" if record is not None and record.crash_count else ""
    return f"last heartbeat {format_time(candidate.silent_since)}{host} ({threshold}){crashes}"


def _decision_parts(candidate: StaleCandidate, record: TaskRecord | None, now: datetime) -> Iterator[str]:
    task = candidate.task
    if record is not None and task.state is TaskStatus.RUNNING:
        yield f"{record.retry_count} of {record.max_retries} retries used;"
    if candidate.due_at is not None:
        due_in = candidate.due_at - now
        when = f"in {format_age(due_in)}, if no heartbeat arrives" if due_in > _NO_TIME else "with the next sweep"
        yield f"{when}: {task.phrase}"
        return
    phrase = task.phrase if task.decision is DecisionKind.RETRY else _DECISION_PHRASES[task.decision]
    yield f"{task.reason}: a sweep would {phrase}"
    if task.code is not None:
        yield f"with {task.code}"
    if task.run_at is not None and task.run_at > now:
        yield f"at {format_time(task.run_at)}"
    if task.held_until is not None:
        yield f"until {format_time(task.held_until)}" + (" (outage grace)" if task.reason == OUTAGE_GRACE else "")
    if task.hook is not None:
        yield f"(decided by {task.hook})"


def disabling_setting(state: TaskStatus, config: RecoveryConfig) -> str | None:
    """The setting that is off and so disables the automatic recovery of tasks in this state."""
    setting = _AUTO_SETTINGS.get(state)
    return setting if setting is not None and not getattr(config, setting) else None


def _automatic_sweep_line(task: SweptTask, maintenance_status: MaintenanceStatus, now: datetime) -> str:
    """When workers will recover the task on their own, if at all."""
    config = maintenance_status.config
    if config is None:
        return "no automatic sweep: no live worker"
    if setting := disabling_setting(task.state, config):
        return f"no automatic recovery: {setting} is off"
    interval = timedelta(milliseconds=config.check_interval_ms)
    if maintenance_status.last_pass_at is None:
        return f"automatic sweep every {format_age(interval)}"
    due_in = format_age(max(maintenance_status.last_pass_at + interval - now, _NO_TIME))
    return f"next automatic sweep in {due_in}, last by {short_id(maintenance_status.last_pass_by)}"


# Sweep


async def propose_sweep(source: DataSource, options: SweepOptions) -> Proposal:
    """The proposal of a sweep with these options. Applying it decides again, by the same rules.

    If nothing is stale, a warning says which tasks are silent and when they become stale.
    """
    preview = await source.stale_candidates(options)
    due = [task for task in preview.tasks if task.changes_state]
    healed = len(preview.workflows)
    alive = await _count_live_owners(source, due) if due else 0
    silent = () if due or healed else await source.silent_tasks(options)

    async def apply(confirmed: Confirmation) -> ProposalReport:
        report = await source.sweep(options, reason=confirmed.reason, stop=confirmed.stop)
        applied = sum(task.applied for task in report.tasks)
        # A sweep reports no progress; this fills the bar at its end.
        confirmed.progress(ActionProgress(done=1, total=1, affected=applied, skipped=0))
        return _sweep_report(report)

    return Proposal(
        title=f"Sweep {plural(len(due), 'task')}",
        apply_label=f"sweep {len(due) + healed:,}",
        selected_by="all stale tasks"
        if options.worker_id is None
        else f"tasks of worker {short_id(options.worker_id)}",
        lines=_sweep_lines(preview),
        warnings=(*_sweep_warnings(due, alive), *preview.warnings, *_next_stale_warning(silent)),
        command=sweep_command(options),
        # Recovering a task that may still be running needs the stronger confirmation, however few there are.
        confirmation_text=str(len(due) + healed) if len(due) > SINGLE_KEY_LIMIT or alive else None,
        apply=apply,
    )


def _sweep_lines(report: SweepReport) -> tuple[ProposalLine, ...]:
    groups = Counter((task.decision, task.state, task.code or task.reason) for task in report.tasks)
    tasks = tuple(
        ProposalLine(
            count=count,
            kind=f"{state}  {reason}",
            effect=_EFFECTS[decision],
            is_skipped=decision not in PAST_TENSE,
        )
        for (decision, state, reason), count in groups.most_common()
    )
    cases = Counter(workflow.case for workflow in report.workflows)
    healed = tuple(
        ProposalLine(count=count, kind=f"WORKFLOW  {case}", effect="healed") for case, count in cases.items()
    )
    return (*tasks, *healed) or (ProposalLine(count=0, kind="stale", effect="nothing to do", is_skipped=True),)


async def _count_live_owners(source: DataSource, due: Sequence[SweptTask]) -> int:
    """How many of these tasks have a live owner and may still be running."""
    workers = {worker.worker_id: worker for worker in await load_workers(source)}
    owned = [(task, None if task.owner_id is None else workers.get(task.owner_id)) for task in due]
    return sum(StaleCandidate(task=task, silent_since=None, owner=owner).has_live_owner for task, owner in owned)


def _sweep_warnings(due: Sequence[SweptTask], alive: int) -> Iterator[str]:
    if started := sum(task.decision is DecisionKind.RETRY for task in due):
        yield f"side effects may happen again: {started:,} of these did start"
    if alive:
        yield f"{alive:,} of these are silent but their worker still sends heartbeats"


def _next_stale_warning(silent: Sequence[SweptTask]) -> Iterator[str]:
    if silent:
        soonest = silent[0]
        yield f"{plural(len(silent), 'silent task')}, the first stale in {format_age(soonest.due_in)}: {soonest.phrase}"


def sweep_command(options: SweepOptions) -> str:
    """The equivalent command."""
    parts = ["horsies", "sweep"]
    if options.sweep_threshold is not None:
        parts += ["--threshold", f"{options.sweep_threshold.total_seconds():g}s"]
    if options.worker_id is not None:
        parts += ["--worker", str(options.worker_id)]
    return " ".join([*parts, "--force"] if options.force else parts)


def _sweep_report(report: SweepReport) -> ProposalReport:
    match report.status:
        case SweepStatus.BUSY:
            return ProposalReport(title="Nothing changed", lines=("another sweep is running; try again in a minute",))
        case SweepStatus.OUTAGE_GRACE:
            return ProposalReport(title="Nothing changed", lines=("outage grace: all stale tasks are held back",))
        case _:
            applied = [task for task in report.tasks if task.applied]
            counts = Counter(task.decision for task in applied)
            parts = [f"{word} {counts[decision]:,}" for decision, word in PAST_TENSE.items() if counts[decision]]
            parts += [f"healed {plural(len(report.workflows), 'workflow run')}"] if report.workflows else []
            changed = sum(task.changes_state and not task.applied for task in report.tasks)
            parts += [f"{changed:,} changed meanwhile"] if changed else []
            parts += [f"{plural(len(report.locked_runs), 'workflow run')} locked"] if report.locked_runs else []
            nothing = "nothing changed" if report.was_stopped else "nothing was stale anymore"
            stopped = ("stopped before the end; the rest is unchanged",) if report.was_stopped else ()
            failed = tuple(f"{failure.step}: {failure.error.message}" for failure in report.failures)
            return ProposalReport(
                title="Swept",
                lines=("   ".join(parts) or nothing, *stopped, *failed, *report.warnings),
                changed_ids=tuple(task.task_id for task in applied),
            )


# Cleanup


async def propose_cleanup(source: DataSource, *, database_name: str, now: datetime) -> Proposal:
    """The proposal of a cleanup. It deletes rows, so it requires typing the database name."""
    due = await source.cleanup_candidates()

    async def apply(confirmed: Confirmation) -> ProposalReport:
        report = await source.cleanup(reason=confirmed.reason, progress=confirmed.progress, stop=confirmed.stop)
        return _cleanup_report(report)

    return Proposal(
        title=f"Delete {due.rows:,} old rows",
        apply_label=f"delete {due.rows:,}",
        selected_by=f"rows past their retention at {format_time(now)}",
        lines=tuple(
            sorted((_cleanup_line(category, now) for category in due.categories), key=lambda line: line.is_skipped)
        ),
        warnings=(f"cannot be undone; about {_size(due.bytes)} are deleted",) if due.rows else (),
        command="horsies cleanup",
        confirmation_text=f"delete {database_name}",
        apply=apply,
    )


def _cleanup_line(cleanup: CategoryCleanup, now: datetime) -> ProposalLine:
    name = cleanup.category.label
    if cleanup.window is None:
        return ProposalLine(count=0, kind=name, effect="kept forever", is_skipped=True)
    kind = f"{name} older than {format_duration(cleanup.window)}"
    if not cleanup.rows:
        return ProposalLine(count=0, kind=kind, effect="nothing to delete", is_skipped=True)
    dependent = sum(cleanup.tables.values()) - cleanup.rows
    others = f", plus {dependent:,} dependent rows" if dependent else ""
    oldest = f", oldest {format_age(now - cleanup.oldest_at)}" if cleanup.oldest_at else ""
    return ProposalLine(
        count=cleanup.rows,
        kind=f"{kind}{oldest}, about {_size(cleanup.bytes)}{others}",
        effect="deleted permanently",
    )


def _size(byte_count: int) -> str:
    return humanize.naturalsize(byte_count, gnu=True)


def _cleanup_report(report: CleanupReport) -> ProposalReport:
    cleaned = report.cleaned
    counts = [f"{category.category.label} {category.rows:,}" for category in cleaned.categories if category.rows]
    rest = () if cleaned.is_complete else ("stopped before the end; the remaining rows are kept",)
    return ProposalReport(
        title="Cleaned up",
        lines=(f"deleted {cleaned.rows:,} rows", "   ".join(counts), *rest, f"operator log {report.audit_id}"),
    )
