"""Stale tasks as a list: which there are, which will soon be, and the evidence, so that an operator can disagree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, assert_never

from horsies.model.codes import OperationalErrorCode
from horsies.model.recovery.verdicts import Decision, RecoveryReason
from horsies.model.task import TaskStatus
from horsies.recovery.report import AMNESTY
from horsies_tui.fleet import workers_of
from horsies_tui.format import age, clock, short_age, short_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from uuid import UUID

    from horsies.model.recovery.judging import Thresholds
    from horsies.model.recovery.options import SweepOptions
    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.reads.tasks import TaskFacts
    from horsies_ops.reads.upkeep import Upkeep
    from horsies_ops.reads.workers import WorkerRow
    from horsies_tui.source import Source

NEAR: Final = timedelta(seconds=30)
"""So little silence more, and a task is stale."""

_RANK = {TaskStatus.RUNNING: 0, TaskStatus.CLAIMED: 1, TaskStatus.PENDING: 2}
_SWITCHES = {TaskStatus.CLAIMED: "auto_requeue_stale_claimed", TaskStatus.RUNNING: "auto_fail_stale_running"}
_NOTHING = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A task and the verdict on it, with its owner where that has not stopped."""

    task: SweptTask
    quiet_since: datetime | None
    """Its last sign of life, or the end of its time; None where the report does not say."""
    owner: WorkerRow | None
    is_near: bool = False
    """Not stale yet."""

    @property
    def id(self) -> UUID:
        return self.task.task_id

    @property
    def is_alive(self) -> bool:
        """Silent though its worker still reports: blocked or busy rather than dead, so it may well be running."""
        return self._is_undeclared and not self._has_silent_owner

    @property
    def silent_owner(self) -> WorkerRow | None:
        """Its worker where that has been silent for as long as condemns the task, and nobody has declared it lost."""
        return self.owner if self._is_undeclared and self._has_silent_owner else None

    @property
    def _is_undeclared(self) -> bool:
        is_stale = not self.is_near and self.task.reason == RecoveryReason.HEARTBEAT_LOST
        return is_stale and self.task.state is TaskStatus.RUNNING

    @property
    def _has_silent_owner(self) -> bool:
        limit = self.task.effective_threshold
        return self.owner is not None and limit is not None and self.owner.heartbeat_age >= limit

    def silence(self, now: datetime) -> timedelta | None:
        is_held = self.task.last_beat_age is not None
        return now - self.quiet_since if is_held and self.quiet_since is not None else None

    def over(self, now: datetime) -> timedelta | None:
        """How far past its limit; below zero for what is near it."""
        if self.quiet_since is None:
            return None
        return now - self.quiet_since - (self.task.effective_threshold or _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """All candidates of one moment: what a sweep would look at, then what is near."""

    report: SweepReport
    stale: tuple[Candidate, ...]
    near: tuple[Candidate, ...]
    upkeep: Upkeep

    @property
    def thresholds(self) -> Thresholds:
        return self.report.thresholds


async def staleness(source: Source, options: SweepOptions) -> Staleness:
    """What a sweep with these options would find now."""
    report = await source.stale_candidates(options)
    near = await source.near_limit(NEAR, options)
    workers = {worker.worker_id: worker for worker in await workers_of(source)}
    upkeep = await source.upkeep()
    return Staleness(
        report=report,
        stale=tuple(sorted((_candidate(each, workers, upkeep.at) for each in report.tasks), key=_order)),
        near=tuple(sorted((_candidate(each, workers, upkeep.at, is_near=True) for each in near), key=_order)),
        upkeep=upkeep,
    )


def _candidate(
    task: SweptTask, workers: Mapping[UUID, WorkerRow], now: datetime, *, is_near: bool = False
) -> Candidate:
    quiet = task.last_beat_age if task.last_beat_age is not None else task.overdue_by
    return Candidate(
        task=task,
        quiet_since=None if quiet is None else now - quiet,
        owner=None if task.owner_id is None else workers.get(task.owner_id),
        is_near=is_near,
    )


def _order(candidate: Candidate) -> tuple[int, timedelta, UUID]:
    """What ran first, and of that what is furthest past its limit."""
    task = candidate.task
    over = (task.last_beat_age or task.overdue_by or _NOTHING) - (task.effective_threshold or _NOTHING)
    return _RANK[task.state], -over, task.task_id


def verdict(candidate: Candidate, now: datetime) -> str:
    """What a sweep would do, in a word or two."""
    if candidate.is_near:
        return "watch"
    return "? alive" if candidate.is_alive else decided(candidate.task, now)


def decided(task: SweptTask, now: datetime) -> str:
    """The decision itself, whether the owner still reports or not."""
    until = "" if task.held_until is None else f" {age(task.held_until - now)}"
    match task.decision:
        case Decision.RETRY:
            return f"retry, {task.retries_left} left"
        case Decision.FAIL if task.code == OperationalErrorCode.POISON_TASK:
            return "fail, poison"
        case Decision.LEAVE:
            return f"{task.reason}{until}"
        case Decision.HOLD:
            return f"hold{until}"
        case Decision.FAIL | Decision.REQUEUE | Decision.EXPIRE:
            return task.decision.value
        case _:
            assert_never(task.decision)


def owner(candidate: Candidate, now: datetime) -> str:
    """`000000a7 lost 6m`, `000000a4 beat 3s`: who holds it, how that one is, and since when nothing was heard of it."""
    task, worker = candidate.task, candidate.owner
    if task.owner_id is None:
        return "-"
    if worker is None:
        return f"{short_id(task.owner_id)} {task.owner_state}"
    standing = "lost" if task.owner_state == "lost" else worker.standing
    said = "beat" if standing == "running" else standing
    return f"{short_id(task.owner_id)} {said} {short_age(now - worker.last_heartbeat_at)}"


def why(candidate: Candidate, facts: TaskFacts | None, upkeep: Upkeep, now: datetime) -> Iterator[str]:
    """The evidence, line by line."""
    task = candidate.task
    if task.state is TaskStatus.PENDING:
        yield f"nobody has claimed it, and its good_until passed at {clock(candidate.quiet_since)}"
    else:
        yield _beat(candidate, facts)
        yield _owner(candidate)
    yield " ".join(_consequence(candidate, facts, now))
    if candidate.is_alive:
        yield "its worker still reports: it may be blocked, or busy, and still at work"
    if (silent := candidate.silent_owner) is not None:
        yield f"its worker is silent as well, since {clock(silent.last_heartbeat_at)}"
    yield _unasked(task, upkeep, now)


def _beat(candidate: Candidate, facts: TaskFacts | None) -> str:
    where = f" from {facts.worker_hostname}:{facts.worker_pid}" if facts and facts.worker_hostname else ""
    limit = f"limit {age(candidate.task.effective_threshold)}" + (", resilient" if candidate.task.resilient else "")
    crashes = f", crashed {facts.crash_count} times before" if facts is not None and facts.crash_count else ""
    return f"last beat {clock(candidate.quiet_since)}{where} ({limit}){crashes}"


def _owner(candidate: Candidate) -> str:
    worker, owner_id = candidate.owner, candidate.task.owner_id
    if worker is not None:
        return f"worker {short_id(owner_id)} last seen {clock(worker.last_heartbeat_at)}"
    return f"worker {short_id(owner_id)} is {candidate.task.owner_state}"


def _consequence(candidate: Candidate, facts: TaskFacts | None, now: datetime) -> Iterator[str]:
    task = candidate.task
    if facts is not None and task.state is TaskStatus.RUNNING:
        yield f"{facts.retry_count} of {facts.max_retries} retries used;"
    if candidate.is_near:
        yield f"a sweep leaves it alone for another {age(-(candidate.over(now) or _NOTHING))}"
        return
    yield f"{task.reason}: a sweep would {_WOULD[task.decision]}"
    if task.code is not None:
        yield f"with {task.code}"
    if task.run_at is not None and task.run_at > now:
        yield f"at {clock(task.run_at)}"
    if task.held_until is not None:
        yield f"until {clock(task.held_until)}" + (", for nobody has listened long enough" * (task.reason == AMNESTY))
    if task.hook is not None:
        yield f"as {task.hook} says"


_WOULD = {
    Decision.REQUEUE: "put it back, for it had not begun",
    Decision.RETRY: "schedule a retry",
    Decision.FAIL: "fail it",
    Decision.EXPIRE: "expire it",
    Decision.HOLD: "leave it alone",
    Decision.LEAVE: "leave it alone",
}


def _unasked(task: SweptTask, upkeep: Upkeep, now: datetime) -> str:
    """Whether anybody will do it without being told to."""
    config, switch = upkeep.config, _SWITCHES.get(task.state)
    if config is None:
        return "no worker lives to sweep by itself"
    if switch is not None and not getattr(config, switch):
        return f"no worker does this by itself: {switch} is off"
    every = timedelta(milliseconds=config.check_interval_ms)
    if upkeep.last_pass_at is None:
        return f"workers sweep by themselves every {age(every)}"
    soon = age(max(upkeep.last_pass_at + every - now, _NOTHING))
    return f"next automatic sweep in {soon}, the last was by {short_id(upkeep.last_pass_by)}"
