"""The recovery decision about a CLAIMED or RUNNING task whose worker may be dead.

The reaper, manual sweeps, dry runs and all lists of stale tasks use `decide`, so they always agree. It needs stored
data only, not the task's code.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self, TypeAlias
from uuid import UUID

from horsies.model.retry import RetryAt, RetryPolicy, RetryState, backoff_delay_s, decide_retry, retry_if_possible
from horsies.model.settings.recovery import RecoveryConfig
from horsies.model.task import EARLIEST_INSTANT, LATEST_INSTANT, TaskInfo, TaskStatus, has_expired
from horsies.model.task_result import BuiltInTaskCode, OperationalErrorCode, OutcomeCode

if TYPE_CHECKING:
    from horsies.model.recovery.fleet import WorkerThresholds


# Decisions


class RecoveryReason(StrEnum):
    """Why a task was interrupted."""

    HEARTBEAT_LOST = "HEARTBEAT_LOST"
    OWNER_LOST = "OWNER_LOST"
    OWNER_MISSING = "OWNER_MISSING"
    OWNER_STOPPED = "OWNER_STOPPED"
    CHILD_DIED = "CHILD_DIED"
    SHUTDOWN = "SHUTDOWN"


class DecisionKind(StrEnum):
    """The kinds of decisions, as shown in reports and `--json` output."""

    REQUEUE = "requeue"
    RETRY = "retry"
    FAIL = "fail"
    EXPIRE = "expire"
    HOLD = "hold"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """The task had not started: back to PENDING, due at `at`, with `retry_count` retries used."""

    kind: ClassVar[DecisionKind] = DecisionKind.REQUEUE

    reason: RecoveryReason
    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt failed; the next is due at `at`, with `retry_count` retries used."""

    kind: ClassVar[DecisionKind] = DecisionKind.RETRY

    reason: RecoveryReason
    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The task fails: it crashed, crashed too often, or its run was paused or cancelled and it may not start again."""

    kind: ClassVar[DecisionKind] = DecisionKind.FAIL

    reason: RecoveryReason
    code: BuiltInTaskCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """The task was claimed but not started, and is past its `good_until`."""

    kind: ClassVar[DecisionKind] = DecisionKind.EXPIRE


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hook returned `skip`: leave the task alone until `until`."""

    kind: ClassVar[DecisionKind] = DecisionKind.HOLD

    until: datetime
    is_new: bool = False
    """Decided just now and not stored yet."""
    why: ClassVar[str] = "hook_skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Do nothing: the task is not stale, outage grace applies, or automatic recovery is disabled."""

    kind: ClassVar[DecisionKind] = DecisionKind.LEAVE

    why: Literal["fresh", "outage_grace", "disabled"]
    until: datetime | None = None
    """When outage grace ends for this task."""


Decision: TypeAlias = Requeue | Retry | Fail | Expire | Hold | Leave

StateChange: TypeAlias = Requeue | Retry | Fail | Expire
"""Decisions that change the status of a task."""


# Recovery hooks

MAX_ATTEMPTS: Final = 2**31 - 1  # stored in `retry_count`, an integer column


class RecoveryKind(StrEnum):
    """What a hook decided for a task."""

    DEFAULT = "default"
    RESCHEDULE = "reschedule"
    FAIL_WITH_BACKOFF = "fail_with_backoff"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A hook's answer about one task; create it with one of the four class methods."""

    kind: RecoveryKind
    run_at: datetime | None = None
    """When the task is due; for reschedule only."""
    attempts: int | None = None
    """Number of retries counted as used, for reschedule only; None keeps the current number."""

    def __post_init__(self) -> None:
        if fault := answer_error(self):
            raise ValueError(fault)
        if self.run_at is not None:
            object.__setattr__(self, "run_at", self.run_at.astimezone(UTC))  # stored and shown times are UTC

    @classmethod
    def default(cls) -> Recovery:
        """Do what would happen without a hook."""
        return cls(kind=RecoveryKind.DEFAULT)

    @classmethod
    def reschedule(cls, run_at: datetime, attempts: int | None = None) -> Recovery:
        """Run again at exactly `run_at`, a timezone-aware datetime, with `attempts` retries counted as used.

        The crash still counts, a task that crashed too often still fails, and `good_until` still applies.
        """
        return cls(kind=RecoveryKind.RESCHEDULE, run_at=run_at, attempts=attempts)

    @classmethod
    def fail_with_backoff(cls) -> Recovery:
        """Count a failed attempt; retry with the policy's backoff while retries are left, for any error code."""
        return cls(kind=RecoveryKind.FAIL_WITH_BACKOFF)

    @classmethod
    def skip(cls) -> Recovery:
        """Leave the task alone and ask again after one more threshold."""
        return cls(kind=RecoveryKind.SKIP)


def answer_error(answer: Recovery) -> str | None:
    """Return what is wrong with a hook's answer, or None; user code may have put any types in it."""
    kind, run_at, attempts = (getattr(answer, name, None) for name in ("kind", "run_at", "attempts"))
    if not isinstance(kind, RecoveryKind):
        return f"invalid kind {kind!r}: create a Recovery with default(), reschedule(), fail_with_backoff() or skip()"
    if (run_at is None) != (kind is not RecoveryKind.RESCHEDULE):
        return "run_at is required for reschedule and not allowed otherwise"
    if run_at is not None and (fault := _instant_error(run_at)):
        return fault
    if attempts is not None and (type(attempts) is not int or not 0 <= attempts <= MAX_ATTEMPTS):
        return f"attempts must be a whole number, 0 or more, got {attempts!r}"
    return None


def _instant_error(run_at: object) -> str | None:
    if not isinstance(run_at, datetime):
        return f"run_at must be a datetime, got {type(run_at).__qualname__}"
    if run_at.utcoffset() is None:
        return f"run_at must have a time zone, got {run_at.isoformat()}"
    if not EARLIEST_INSTANT <= run_at <= LATEST_INSTANT:
        return f"run_at must be within the years 1 to 9999 in every time zone, got {run_at.isoformat()}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """An interrupted task, passed to a recovery hook; `recovering_worker_id` is None for a manual sweep."""

    task: TaskInfo
    recovering_worker_id: str | None
    previous_worker_id: str | None
    reason: RecoveryReason
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredWorkers:
    """The tasks that one sweep recovered: their number and their former workers."""

    worker_ids: tuple[str, ...]
    recovered_count: int
    recovering_worker_id: str | None


# What a decision is based on: the task's row, its last heartbeat, its owner, and how long the observer was connected

MISSING_STATE: Final = "missing"
"""Shown as the state of an owner whose row is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """The row of a CLAIMED or RUNNING task."""

    task_id: UUID
    status: TaskStatus
    claim_token: int
    enqueued_at: datetime
    retry_count: int = 0
    crash_count: int = 0
    retry_policy: RetryPolicy | None = None
    good_until: datetime | None = None
    flags: Mapping[str, bool] = field(default_factory=dict[str, bool])
    recovery_hold_until: datetime | None = None
    no_restart: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOwner:
    """The worker that claimed a task, and the thresholds it published."""

    state: str
    last_heartbeat_at: datetime
    thresholds: WorkerThresholds

    @property
    def is_stopped(self) -> bool:
        return self.state == "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningWindow:
    """When the observer was able to see heartbeats; if no field is set, silence counts from the last heartbeat."""

    listening_since: datetime | None = None
    """Start of the observer's unbroken heartbeat series."""
    server_started_at: datetime | None = None
    """Set if no worker is live: owners seen shortly before the database server started may still reconnect."""
    blind_until: datetime | None = None
    """Set if every live worker has missed a heartbeat: when the last of them becomes stale, unless one recovers."""

    def silent_since(self, heartbeat_at: datetime, owner: TaskOwner | None, threshold: timedelta) -> datetime:
        """Return the start of the silence that counts: the last heartbeat, or when the observer connected if later."""
        since = self.listening_since
        if self.server_started_at is not None and owner is not None:
            was_alive_before_start = owner.last_heartbeat_at >= self.server_started_at - threshold
            since = self.server_started_at if was_alive_before_start else since
        return heartbeat_at if since is None else max(heartbeat_at, since)

    def outage_grace_until(self, silent_since: datetime, threshold: timedelta) -> datetime:
        """Return when a task that is silent since `silent_since` becomes stale."""
        stale_at = silent_since + threshold
        return stale_at if self.blind_until is None else min(stale_at, self.blind_until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about a task besides its row."""

    last_heartbeat_at: datetime
    """Newest heartbeat with the row's claim token; without one, the time of the claim or start."""
    owner: TaskOwner | None
    listening: ListeningWindow
    hook_answer: Recovery | None = None
    """The answer of a hook, if one was asked already."""

    def reason(self, *, is_lost: bool) -> RecoveryReason:
        if self.owner is None:
            return RecoveryReason.OWNER_MISSING
        if self.owner.is_stopped:
            return RecoveryReason.OWNER_STOPPED
        return RecoveryReason.OWNER_LOST if is_lost else RecoveryReason.HEARTBEAT_LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """The thresholds and recovery settings of an observer."""

    claimed_threshold: timedelta
    running_threshold: timedelta
    worker_threshold: timedelta
    recovery_delay: timedelta = timedelta(0)
    resilient_multiplier: int = 1
    resilient_flags: frozenset[str] = frozenset()
    max_crashes: int = 10
    honors_owner_thresholds: bool = True
    """Whether an owner's longer thresholds apply; not if the caller of a sweep gave a threshold."""
    recovers_claimed: bool = True
    recovers_running: bool = True

    @classmethod
    def from_config(cls, config: RecoveryConfig, *, honors_auto_switches: bool = False) -> Self:
        """Build a policy; the `auto_*` switches apply to the reaper only, not to manual sweeps."""
        return cls(
            claimed_threshold=timedelta(milliseconds=config.claimed_stale_threshold_ms),
            running_threshold=timedelta(milliseconds=config.running_stale_threshold_ms),
            worker_threshold=timedelta(milliseconds=config.worker_stale_threshold_ms),
            recovery_delay=timedelta(milliseconds=config.recovery_delay_ms),
            resilient_multiplier=config.resilient_multiplier,
            resilient_flags=frozenset(config.resilient_flags),
            max_crashes=config.max_crashes,
            recovers_claimed=config.auto_requeue_stale_claimed or not honors_auto_switches,
            recovers_running=config.auto_fail_stale_running or not honors_auto_switches,
        )

    def may_recover(self, task: LiveTask) -> bool:
        return self.recovers_claimed if task.status is TaskStatus.CLAIMED else self.recovers_running

    def is_resilient(self, task: LiveTask) -> bool:
        return any(task.flags.get(flag) is True for flag in self.resilient_flags)

    def threshold(self, task: LiveTask, owner: TaskOwner | None) -> timedelta:
        """Return how long this task may be silent: the longer threshold of observer and owner, more if resilient."""
        if task.status is TaskStatus.CLAIMED:
            base = self._longer_threshold(self.claimed_threshold, owner and owner.thresholds.claimed)
        else:
            base = self._longer_threshold(self.running_threshold, owner and owner.thresholds.running)
        return base * self.resilient_multiplier if self.is_resilient(task) else base

    def is_lost(self, owner: TaskOwner, listening: ListeningWindow, now: datetime) -> bool:
        """Whether a worker counts as lost; shown as the reason, but does not make its tasks stale."""
        if owner.state in {"lost", "stopped"}:
            return owner.state == "lost"
        limit = self._longer_threshold(self.worker_threshold, owner.thresholds.worker)
        return now - listening.silent_since(owner.last_heartbeat_at, owner, limit) >= limit

    def _longer_threshold(self, observers: timedelta, owners: timedelta | None) -> timedelta:
        # An owner with longer thresholds may also send its heartbeats less often than the observer expects.
        return max(observers, owners) if owners is not None and self.honors_owner_thresholds else observers


# The decision

CRASHED: Final = OperationalErrorCode.WORKER_CRASHED
POISON: Final = OperationalErrorCode.POISON_TASK


def decide(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Decision:
    """Decide what to do with a CLAIMED or RUNNING task; `now` is the database time."""
    if task.recovery_hold_until is not None and task.recovery_hold_until > now:
        return Hold(until=task.recovery_hold_until)
    if (leave := _leave_if_not_stale(task, evidence, policy, now)) is not None:
        return leave
    # After the check above, so that only stale tasks are reported as disabled.
    if not policy.may_recover(task):
        return Leave(why="disabled")
    return _Decider(task, evidence, policy, now).decide()


def asks_hooks(decision: Decision) -> bool:
    """Whether hooks may change the decision: not for poison, expired tasks, or tasks of a paused or cancelled run."""
    return isinstance(decision, (Requeue, Retry)) or (isinstance(decision, Fail) and decision.code is CRASHED)


def _leave_if_not_stale(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Leave | None:
    owner = evidence.owner
    # A stopped owner will not finish its tasks; there is no need to wait for the threshold.
    if owner is not None and owner.is_stopped:
        return None
    threshold = policy.threshold(task, owner)
    if now - evidence.last_heartbeat_at < threshold:
        return Leave(why="fresh")
    silent_since = evidence.listening.silent_since(evidence.last_heartbeat_at, owner, threshold)
    if now - silent_since >= threshold:
        return None
    return Leave(why="outage_grace", until=evidence.listening.outage_grace_until(silent_since, threshold))


@dataclass(frozen=True, slots=True)
class _Decider:
    """A stale task with everything that its decision depends on."""

    task: LiveTask
    evidence: Evidence
    policy: RecoveryPolicy
    now: datetime

    def decide(self) -> Decision:
        is_claimed = self.task.status is TaskStatus.CLAIMED
        # Before the hook's answer: an expired task cannot start, so there is nothing left to decide.
        if is_claimed and has_expired(self.task.good_until, self.now):
            return Expire()
        if self._answer_kind is RecoveryKind.SKIP:
            threshold = self.policy.threshold(self.task, self.evidence.owner)
            return Hold(until=self.now + threshold, is_new=True)
        change = self._decide_claimed() if is_claimed else self._decide_running()
        # Tasks of a paused or cancelled run may finish but not start again.
        if self.task.no_restart is not None and isinstance(change, (Requeue, Retry)):
            return Fail(reason=self._reason, code=OutcomeCode.TASK_CANCELLED)
        return change

    def _decide_claimed(self) -> StateChange:
        """Requeue; a task that did not start costs neither a retry nor a crash, unless a hook decides otherwise."""
        answer = self.evidence.hook_answer
        if self._answer_kind is RecoveryKind.FAIL_WITH_BACKOFF:
            return self._retry_with_backoff()
        if answer is not None and answer.run_at is not None:
            # No check of good_until: if it passes before run_at, the task expires while it is PENDING.
            return Requeue(reason=self._reason, at=answer.run_at, retry_count=self._retries_used(answer.attempts))
        # enqueued_at is the due time; keeping it preserves the task's place in its queue.
        at = max(self.task.enqueued_at, self._not_before)
        return Requeue(reason=self._reason, at=at, retry_count=self.task.retry_count)

    def _decide_running(self) -> StateChange:
        answer = self.evidence.hook_answer
        # Before the hook's answer: not even a hook may restart a poison task. The crash at hand is not counted yet.
        if self.task.crash_count + 1 >= self.policy.max_crashes:
            return Fail(reason=self._reason, code=POISON)
        if self._answer_kind is RecoveryKind.FAIL_WITH_BACKOFF:
            return self._retry_with_backoff()
        if answer is not None and answer.run_at is not None:
            # Not Expire: a task that has started can only fail.
            if has_expired(self.task.good_until, answer.run_at):
                return Fail(reason=self._reason, code=CRASHED)
            return Retry(reason=self._reason, at=answer.run_at, retry_count=self._retries_used(answer.attempts))
        retry = decide_retry(
            self._retry_state, CRASHED, now=self.now, jitter=stable_jitter(self.task), not_before=self._not_before
        )
        return self._retry(retry.due_at) if isinstance(retry, RetryAt) else Fail(reason=self._reason, code=CRASHED)

    def _retry_with_backoff(self) -> StateChange:
        """Retry with the policy's backoff while retries are left, even if WORKER_CRASHED is not among its codes."""
        policy, number = self.task.retry_policy, self.task.retry_count + 1
        if policy is not None:
            due_at = self.now + timedelta(seconds=backoff_delay_s(policy, number, stable_jitter(self.task)))
            retry = retry_if_possible(self._retry_state, due_at)
            if isinstance(retry, RetryAt):
                return self._retry(retry.due_at)
        return Fail(reason=self._reason, code=CRASHED)

    def _retry(self, at: datetime) -> Retry:
        return Retry(reason=self._reason, at=at, retry_count=self.task.retry_count + 1)

    def _retries_used(self, attempts: int | None) -> int:
        return self.task.retry_count if attempts is None else attempts

    @property
    def _answer_kind(self) -> RecoveryKind:
        return RecoveryKind.DEFAULT if self.evidence.hook_answer is None else self.evidence.hook_answer.kind

    @property
    def _reason(self) -> RecoveryReason:
        owner, listening = self.evidence.owner, self.evidence.listening
        return self.evidence.reason(is_lost=owner is not None and self.policy.is_lost(owner, listening, self.now))

    @property
    def _not_before(self) -> datetime:
        return self.now + self.policy.recovery_delay

    @property
    def _retry_state(self) -> RetryState:
        task = self.task
        return RetryState(policy=task.retry_policy, retry_count=task.retry_count, good_until=task.good_until)


def stable_jitter(task: LiveTask) -> float:
    """Return jitter from 0 to 1 derived from task id and claim token, so that a dry run shows the real due time."""
    return zlib.crc32(task.task_id.bytes + task.claim_token.to_bytes(8, "big")) / 0xFFFFFFFF
