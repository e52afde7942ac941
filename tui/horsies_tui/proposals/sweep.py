"""The sweep, as a change to look at first: what it would do is decided by the rule that it then goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, assert_never
from uuid import UUID

import humanize

from horsies.model.recovery.decision import DecisionKind, RecoveryReason
from horsies.model.recovery.fleet import SweepOptions, Thresholds
from horsies.model.retention import CategoryCleanup, CleanupSummary
from horsies.model.task import TaskStatus
from horsies.model.task_result import OperationalErrorCode
from horsies.recovery.report import OUTAGE_GRACE, SweepReport, SweepStatus, SweptTask
from horsies_ops.actions.report import ActionProgress
from horsies_ops.reads.filters import format_duration
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, format_short_age, format_time, plural, short_id
from horsies_tui.proposals.model import Proposal, ProposalLine, ProposalReport
from horsies_tui.screens.fleet import load_workers

if TYPE_CHECKING:
    import asyncio

    from horsies_ops.cleanup import CleanupReport
    from horsies_ops.reads.stale import SilentTasks
    from horsies_ops.reads.tasks import TaskRecord
    from horsies_ops.reads.workers import MaintenanceStatus, WorkerRow


# Stale tasks as a list: which there are, which will soon be, and the evidence, so that an operator can disagree.

NEAR_MARGIN: Final = timedelta(seconds=30)
"""So little silence more, and a task is stale."""

_RANK = {TaskStatus.RUNNING: 0, TaskStatus.CLAIMED: 1, TaskStatus.PENDING: 2}
_AUTO_SETTINGS = {TaskStatus.CLAIMED: "auto_requeue_stale_claimed", TaskStatus.RUNNING: "auto_fail_stale_running"}
_NOTHING = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCandidate:
    """A task and the verdict on it, with its owner where that has not stopped."""

    task: SweptTask
    silent_since: datetime | None
    """Its last sign of life, or the end of its time; None where the report does not say."""
    owner: WorkerRow | None
    is_near_threshold: bool = False
    """Not stale yet."""

    @property
    def id(self) -> UUID:
        return self.task.task_id

    @property
    def has_live_owner(self) -> bool:
        """Silent though its worker still reports: blocked or busy rather than dead, so it may well be running."""
        return self._is_only_silent and not self._has_silent_owner

    @property
    def silent_owner(self) -> WorkerRow | None:
        """Its worker where that has been silent for as long as condemns the task, and nobody has declared it lost."""
        return self.owner if self._is_only_silent and self._has_silent_owner else None

    @property
    def _is_only_silent(self) -> bool:
        is_stale = not self.is_near_threshold and self.task.reason == RecoveryReason.HEARTBEAT_LOST
        return is_stale and self.task.state is TaskStatus.RUNNING

    @property
    def _has_silent_owner(self) -> bool:
        limit = self.task.effective_threshold
        return self.owner is not None and limit is not None and self.owner.heartbeat_age >= limit

    def silence(self, now: datetime) -> timedelta | None:
        is_held = self.task.heartbeat_age is not None
        return now - self.silent_since if is_held and self.silent_since is not None else None

    def over_threshold(self, now: datetime) -> timedelta | None:
        """How far past its limit; below zero for what is near it."""
        if self.silent_since is None:
            return None
        return now - self.silent_since - (self.task.effective_threshold or _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCandidates:
    """All candidates of one moment: what a sweep would look at, then what is near."""

    report: SweepReport
    stale: tuple[StaleCandidate, ...]
    near_threshold: tuple[StaleCandidate, ...]
    maintenance_status: MaintenanceStatus

    @property
    def thresholds(self) -> Thresholds:
        return self.report.thresholds


async def load_stale_candidates(source: DataSource, options: SweepOptions) -> StaleCandidates:
    """What a sweep with these options would find now."""
    report = await source.stale_candidates(options)
    near = await source.nearly_stale_tasks(NEAR_MARGIN, options)
    workers = {worker.worker_id: worker for worker in await load_workers(source)}
    upkeep = await source.maintenance_status()
    return StaleCandidates(
        report=report,
        stale=tuple(sorted((_candidate(each, workers, upkeep.at) for each in report.tasks), key=_sort_key)),
        near_threshold=tuple(
            sorted((_candidate(each, workers, upkeep.at, is_near=True) for each in near), key=_sort_key)
        ),
        maintenance_status=upkeep,
    )


def _candidate(
    task: SweptTask, workers: Mapping[UUID, WorkerRow], now: datetime, *, is_near: bool = False
) -> StaleCandidate:
    quiet = task.heartbeat_age if task.heartbeat_age is not None else task.overdue_by
    return StaleCandidate(
        task=task,
        silent_since=None if quiet is None else now - quiet,
        owner=None if task.owner_id is None else workers.get(task.owner_id),
        is_near_threshold=is_near,
    )


def _sort_key(candidate: StaleCandidate) -> tuple[int, timedelta, UUID]:
    """What ran first, and of that what is furthest past its limit."""
    task = candidate.task
    over = (task.heartbeat_age or task.overdue_by or _NOTHING) - (task.effective_threshold or _NOTHING)
    return _RANK[task.state], -over, task.task_id


def decision_text(candidate: StaleCandidate, now: datetime) -> str:
    """What a sweep would do, in a word or two."""
    if candidate.is_near_threshold:
        return "watch"
    return "? alive" if candidate.has_live_owner else sweep_decision_text(candidate.task, now)


def sweep_decision_text(task: SweptTask, now: datetime) -> str:
    """The decision itself, whether the owner still reports or not."""
    until = "" if task.held_until is None else f" {format_age(task.held_until - now)}"
    match task.decision:
        case DecisionKind.RETRY:
            return f"retry, {task.retries_left} left"
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
    """`000000a7 lost 6m`, `000000a4 beat 3s`: who holds it, how that one is, and since when nothing was heard of it."""
    task, worker = candidate.task, candidate.owner
    if task.owner_id is None:
        return "-"
    if worker is None:
        return f"{short_id(task.owner_id)} {task.owner_state}"
    standing = "lost" if task.owner_state == "lost" else worker.display_state
    said = "beat" if standing == "running" else standing
    return f"{short_id(task.owner_id)} {said} {format_short_age(now - worker.last_heartbeat_at)}"


def evidence_lines(
    candidate: StaleCandidate, facts: TaskRecord | None, maintenance_status: MaintenanceStatus, now: datetime
) -> Iterator[str]:
    """The evidence, line by line."""
    task = candidate.task
    if task.state is TaskStatus.PENDING:
        yield f"nobody has claimed it, and its good_until passed at {format_time(candidate.silent_since)}"
    else:
        yield _last_beat_line(candidate, facts)
        yield _owner_line(candidate)
    yield " ".join(_consequence(candidate, facts, now))
    if candidate.has_live_owner:
        yield "its worker still reports: it may be blocked, or busy, and still at work"
    if (silent := candidate.silent_owner) is not None:
        yield f"its worker is silent as well, since {format_time(silent.last_heartbeat_at)}"
    yield _automatic_sweep_line(task, maintenance_status, now)


def _last_beat_line(candidate: StaleCandidate, facts: TaskRecord | None) -> str:
    where = f" from {facts.worker_hostname}:{facts.worker_pid}" if facts and facts.worker_hostname else ""
    limit = f"limit {format_age(candidate.task.effective_threshold)}" + (
        ", resilient" if candidate.task.resilient else ""
    )
    crashes = f", crashed {facts.crash_count} times before" if facts is not None and facts.crash_count else ""
    return f"last beat {format_time(candidate.silent_since)}{where} ({limit}){crashes}"


def _owner_line(candidate: StaleCandidate) -> str:
    worker, owner_id = candidate.owner, candidate.task.owner_id
    if worker is not None:
        return f"worker {short_id(owner_id)} last seen {format_time(worker.last_heartbeat_at)}"
    return f"worker {short_id(owner_id)} is {candidate.task.owner_state}"


def _consequence(candidate: StaleCandidate, facts: TaskRecord | None, now: datetime) -> Iterator[str]:
    task = candidate.task
    if facts is not None and task.state is TaskStatus.RUNNING:
        yield f"{facts.retry_count} of {facts.max_retries} retries used;"
    if candidate.is_near_threshold:
        yield f"a sweep leaves it alone for another {format_age(-(candidate.over_threshold(now) or _NOTHING))}"
        return
    yield f"{task.reason}: a sweep would {_DECISION_PHRASES[task.decision]}"
    if task.code is not None:
        yield f"with {task.code}"
    if task.run_at is not None and task.run_at > now:
        yield f"at {format_time(task.run_at)}"
    if task.held_until is not None:
        yield f"until {format_time(task.held_until)}" + (
            ", for nobody has listened long enough" * (task.reason == OUTAGE_GRACE)
        )
    if task.hook is not None:
        yield f"as {task.hook} says"


_DECISION_PHRASES = {
    DecisionKind.REQUEUE: "put it back, for it had not begun",
    DecisionKind.RETRY: "schedule a retry",
    DecisionKind.FAIL: "fail it",
    DecisionKind.EXPIRE: "expire it",
    DecisionKind.HOLD: "leave it alone",
    DecisionKind.LEAVE: "leave it alone",
}


def _automatic_sweep_line(task: SweptTask, maintenance_status: MaintenanceStatus, now: datetime) -> str:
    """Whether anybody will do it without being told to."""
    config, switch = maintenance_status.config, _AUTO_SETTINGS.get(task.state)
    if config is None:
        return "no worker lives to sweep by itself"
    if switch is not None and not getattr(config, switch):
        return f"no worker does this by itself: {switch} is off"
    every = timedelta(milliseconds=config.check_interval_ms)
    if maintenance_status.last_pass_at is None:
        return f"workers sweep by themselves every {format_age(every)}"
    soon = format_age(max(maintenance_status.last_pass_at + every - now, _NOTHING))
    return f"next automatic sweep in {soon}, the last was by {short_id(maintenance_status.last_pass_by)}"


CONFIRM_ABOVE = 25
"""For no more than this many a key is enough."""

_EFFECTS = {
    DecisionKind.REQUEUE: "go back to their queue: they had not begun",
    DecisionKind.RETRY: "are run again, as their retry policy has it",
    DecisionKind.FAIL: "fail",
    DecisionKind.EXPIRE: "expire: it is too late for them",
    DecisionKind.HOLD: "left alone: a hook holds them",
    DecisionKind.LEAVE: "left alone",
}
_DONE = {
    DecisionKind.REQUEUE: "requeued",
    DecisionKind.RETRY: "retried",
    DecisionKind.FAIL: "failed",
    DecisionKind.EXPIRE: "expired",
}


async def propose_sweep(source: DataSource, options: SweepOptions) -> Proposal:
    """What a sweep with these options would do now; it decides anew when it is carried out.

    One that would do nothing says what is silent, and from when that will be stale.
    """
    seen = await source.stale_candidates(options)
    due = [task for task in seen.tasks if task.changes_state]
    healed = len(seen.workflows)
    alive = await _with_live_owners(source, due) if due else 0
    silent = None if due or healed else await source.silent_tasks(options)

    async def apply(
        reason: str | None, progress: Callable[[ActionProgress], None], stop: asyncio.Event
    ) -> ProposalReport:
        report = await source.sweep(options, reason=reason, stop=stop)
        moved = sum(task.applied for task in report.tasks)
        progress(ActionProgress(done=1, total=1, affected=moved, skipped=0))
        return _sweep_report(report)

    return Proposal(
        title=f"Sweep {plural(len(due), 'task')}",
        apply_label=f"sweep {len(due) + healed:,}",
        selected_by=_selected_by(options),
        lines=_sweep_lines(seen),
        warnings=(*_sweep_warnings(due, alive), *seen.warnings, *_next_stale_text(silent)),
        command=sweep_command(options),
        confirmation_text=str(len(due) + healed) if len(due) > CONFIRM_ABOVE or alive else None,
        apply=apply,
    )


def _selected_by(options: SweepOptions) -> str:
    return "all that is stale" if options.worker_id is None else f"what worker {short_id(options.worker_id)} holds"


def _sweep_lines(report: SweepReport) -> tuple[ProposalLine, ...]:
    groups = Counter((task.decision, task.state, task.code or task.reason) for task in report.tasks)
    tasks = tuple(
        ProposalLine(count=count, kind=f"{state}  {why}", effect=_EFFECTS[decision], is_skipped=decision not in _DONE)
        for (decision, state, why), count in groups.most_common()
    )
    cases = Counter(workflow.case for workflow in report.workflows)
    healed = tuple(
        ProposalLine(count=count, kind=f"WORKFLOW  {case}", effect="are put right and go on")
        for case, count in cases.items()
    )
    return (*tasks, *healed) or (ProposalLine(count=0, kind="stale", effect="nothing to do", is_skipped=True),)


async def _with_live_owners(source: DataSource, due: Sequence[SweptTask]) -> int:
    """How many of these may well be running, by the rule of the list of stale tasks."""
    workers = {worker.worker_id: worker for worker in await load_workers(source)}
    owned = [(task, None if task.owner_id is None else workers.get(task.owner_id)) for task in due]
    return sum(StaleCandidate(task=task, silent_since=None, owner=owner).has_live_owner for task, owner in owned)


def _sweep_warnings(due: Sequence[SweptTask], alive: int) -> Iterator[str]:
    if begun := sum(task.decision is DecisionKind.RETRY for task in due):
        yield f"side effects may happen again: {begun:,} of these did start"
    if alive:
        yield f"{alive:,} of these are silent though their worker still reports"


def _next_stale_text(silent: SilentTasks | None) -> Iterator[str]:
    if silent is not None:
        count = plural(silent.count, "task")
        yield f"{count} silent for {format_age(silent.longest)}, stale from {format_time(silent.stale_at)}"


def sweep_command(options: SweepOptions) -> str:
    """The command line that does the same."""
    parts = ["horsies", "sweep"]
    if options.sweep_threshold is not None:
        parts += ["--threshold", f"{options.sweep_threshold.total_seconds():g}s"]
    if options.worker_id is not None:
        parts += ["--worker", str(options.worker_id)]
    return " ".join([*parts, "--force"] if options.force else parts)


def _sweep_report(report: SweepReport) -> ProposalReport:
    match report.status:
        case SweepStatus.BUSY:
            return ProposalReport(title="Nothing changed", lines=("somebody else is sweeping; try again in a minute",))
        case SweepStatus.OUTAGE_GRACE:
            return ProposalReport(
                title="Nothing changed", lines=("nobody has listened for long enough; all are held back",)
            )
        case _:
            moved = [task for task in report.tasks if task.applied]
            counts = Counter(task.decision for task in moved)
            parts = [f"{word} {counts[decision]:,}" for decision, word in _DONE.items() if counts[decision]]
            parts += [f"healed {plural(len(report.workflows), 'workflow')}"] if report.workflows else []
            missed = sum(task.changes_state and not task.applied for task in report.tasks)
            parts += [f"{missed:,} had moved meanwhile"] if missed else []
            parts += [f"{plural(len(report.locked_runs), 'workflow')} held by others"] if report.locked_runs else []
            nothing = "nothing was changed" if report.was_stopped else "nothing was stale any more"
            stopped = ("stopped before the end; the rest is as it was",) if report.was_stopped else ()
            failed = tuple(f"{each.step}: {each.error.message}" for each in report.failures)
            return ProposalReport(
                title="Swept",
                lines=("   ".join(parts) or nothing, *stopped, *failed, *report.warnings),
                changed_ids=tuple(task.task_id for task in moved),
            )


# Cleanup, as a change to look at first: rows are deleted, so it takes more than a key.


async def propose_cleanup(source: DataSource, *, database_name: str, now: datetime) -> Proposal:
    """What a cleanup would delete now; whoever wants that must type which database it is about."""
    due = await source.cleanup_candidates()

    async def apply(
        reason: str | None, progress: Callable[[ActionProgress], None], stop: asyncio.Event
    ) -> ProposalReport:
        return _cleanup_outcome(await source.cleanup(reason=reason, progress=progress, stop=stop))

    return Proposal(
        title=f"Delete {due.rows:,} old rows",
        apply_label=f"delete {due.rows:,}",
        selected_by=f"what is past its window at {format_time(now)}",
        lines=tuple(
            sorted((_cleanup_line(portion, now) for portion in due.categories), key=lambda line: line.is_skipped)
        ),
        warnings=_cleanup_warnings(due),
        command="horsies cleanup",
        confirmation_text=f"delete {database_name}",
        apply=apply,
    )


def _cleanup_line(portion: CategoryCleanup, now: datetime) -> ProposalLine:
    name = _name(portion)
    if portion.window is None:
        return ProposalLine(count=0, kind=name, effect="kept for ever", is_skipped=True)
    if not portion.rows:
        return ProposalLine(
            count=0,
            kind=f"{name} older than {format_duration(portion.window)}",
            effect="nothing to delete",
            is_skipped=True,
        )
    along = sum(portion.tables.values()) - portion.rows
    others = f", with {along:,} rows that go along" if along else ""
    oldest = f", up to {format_age(now - portion.oldest_at)}" if portion.oldest_at else ""
    return ProposalLine(
        count=portion.rows,
        kind=f"{name} older than {format_duration(portion.window)}{oldest}, about {_size(portion.bytes)}{others}",
        effect="are deleted for good",
    )


def _cleanup_warnings(due: CleanupSummary) -> tuple[str, ...]:
    return (f"there is no way back; about {_size(due.bytes)} go",) if due.rows else ()


def _name(portion: CategoryCleanup) -> str:
    return portion.category.replace("_", " ")


def _size(number: int) -> str:
    return humanize.naturalsize(number, gnu=True)


def _cleanup_outcome(report: CleanupReport) -> ProposalReport:
    cleaned = report.cleaned
    parts = [f"{_name(each)} {each.rows:,}" for each in cleaned.categories if each.rows]
    rest = () if cleaned.is_complete else ("ended before all was deleted; the rest is as it was",)
    return ProposalReport(
        title="Cleaned up",
        lines=(f"deleted {cleaned.rows:,} rows", "   ".join(parts), *rest, f"operator log {report.audit_id}"),
    )
