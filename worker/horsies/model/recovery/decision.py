"""The one decision about a task whose owner may be gone.

The reaper, a sweep by hand, its dry run and every list of stale tasks ask it, so they cannot disagree. It uses nothing
but stored data: the task's code need not be at hand.
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


# What is decided about a task whose owner fell silent, and why.


class RecoveryReason(StrEnum):
    """Why a task was interrupted."""

    HEARTBEAT_LOST = "HEARTBEAT_LOST"
    OWNER_LOST = "OWNER_LOST"
    OWNER_MISSING = "OWNER_MISSING"
    OWNER_STOPPED = "OWNER_STOPPED"
    CHILD_DIED = "CHILD_DIED"
    SHUTDOWN = "SHUTDOWN"


class DecisionKind(StrEnum):
    """The kinds of verdicts, in the words of reports and of `--json`."""

    REQUEUE = "requeue"
    RETRY = "retry"
    FAIL = "fail"
    EXPIRE = "expire"
    HOLD = "hold"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """It had not begun: back to the queue, due at `at`, with `retry_count` retries spent."""

    kind: ClassVar[DecisionKind] = DecisionKind.REQUEUE

    reason: RecoveryReason
    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt failed, and another is due at `at`, with `retry_count` retries spent by then."""

    kind: ClassVar[DecisionKind] = DecisionKind.RETRY

    reason: RecoveryReason
    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """It ends here: crashed, crashed too often, or not to be started again because its run was paused or cancelled."""

    kind: ClassVar[DecisionKind] = DecisionKind.FAIL

    reason: RecoveryReason
    code: BuiltInTaskCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """It was claimed, not begun, and is past its good_until."""

    kind: ClassVar[DecisionKind] = DecisionKind.EXPIRE


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hook wants it left alone until then."""

    kind: ClassVar[DecisionKind] = DecisionKind.HOLD

    until: datetime
    is_new: bool = False
    """Said just now, and not yet on the row."""
    why: ClassVar[str] = "hook_skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Nothing to do: it is within its limit, the judge has not listened long enough, or its settings forbid it."""

    kind: ClassVar[DecisionKind] = DecisionKind.LEAVE

    why: Literal["fresh", "outage_grace", "disabled"]
    until: datetime | None = None
    """When outage grace is over for this task."""


Decision: TypeAlias = Requeue | Retry | Fail | Expire | Hold | Leave
"""Each has its `decision`."""

StateChange: TypeAlias = Requeue | Retry | Fail | Expire
"""Those that move a row."""


# What recovery hooks are told, and what they may answer.

MAX_ATTEMPTS: Final = 2**31 - 1


class RecoveryKind(StrEnum):
    """What a hook wants for a task."""

    DEFAULT = "default"
    RESCHEDULE = "reschedule"
    FAIL_WITH_BACKOFF = "fail_with_backoff"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A hook's answer about one task; made by the four methods below."""

    kind: RecoveryKind
    run_at: datetime | None = None
    """For a reschedule, and only then: when the task is due."""
    attempts: int | None = None
    """For a reschedule: the retries that count as spent; None keeps them."""

    def __post_init__(self) -> None:
        if fault := answer_error(self):
            raise ValueError(fault)
        if self.run_at is not None:
            object.__setattr__(self, "run_at", self.run_at.astimezone(UTC))  # as every instant that is told or stored

    @classmethod
    def default(cls) -> Recovery:
        """Whatever would happen without a hook."""
        return cls(kind=RecoveryKind.DEFAULT)

    @classmethod
    def reschedule(cls, run_at: datetime, attempts: int | None = None) -> Recovery:
        """Run again at exactly `run_at`, which must know its time zone, with `attempts` retries spent.

        A crash still counts, a task that crashed too often still fails, and `good_until` still holds.
        """
        return cls(kind=RecoveryKind.RESCHEDULE, run_at=run_at, attempts=attempts)

    @classmethod
    def fail_with_backoff(cls) -> Recovery:
        """Count a failed attempt, and retry after the policy's own delay while retries remain, listed or not."""
        return cls(kind=RecoveryKind.FAIL_WITH_BACKOFF)

    @classmethod
    def skip(cls) -> Recovery:
        """Leave the task as it is, and ask again when one more threshold has passed."""
        return cls(kind=RecoveryKind.SKIP)


def answer_error(answer: Recovery) -> str | None:
    """What is wrong with an answer, however it was made; its types are a promise that user code may break."""
    kind, run_at, attempts = (getattr(answer, name, None) for name in ("kind", "run_at", "attempts"))
    if not isinstance(kind, RecoveryKind):
        return f"a Recovery is made by its own methods, got the kind {kind!r}"
    if (run_at is None) != (kind is not RecoveryKind.RESCHEDULE):
        return "run_at belongs to a reschedule"
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
    """A task that was interrupted, as it was read; `recovering_worker_id` is None for a sweep by hand."""

    task: TaskInfo
    recovering_worker_id: str | None
    previous_worker_id: str | None
    reason: RecoveryReason
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredWorkers:
    """What one sweep has settled: of how many tasks, and whose they were."""

    worker_ids: tuple[str, ...]
    recovered_count: int
    recovering_worker_id: str | None


CRASHED: Final = OperationalErrorCode.WORKER_CRASHED
POISON: Final = OperationalErrorCode.POISON_TASK


def decide(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Decision:
    """What becomes of a CLAIMED or RUNNING task at this instant of the database."""
    if task.recovery_hold_until is not None and task.recovery_hold_until > now:
        return Hold(until=task.recovery_hold_until)
    if (spared := _exempt(task, evidence, policy, now)) is not None:
        return spared
    if not policy.may_recover(task):
        return Leave(why="disabled")
    return _Decider(task, evidence, policy, now).decide()


def asks_hooks(verdict: Decision) -> bool:
    """Whether hooks have a say: not on poison, on what has expired, or on a run that was paused or cancelled."""
    return isinstance(verdict, (Requeue, Retry)) or (isinstance(verdict, Fail) and verdict.code is CRASHED)


def _exempt(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Leave | None:
    """Why silence does not condemn this task. An owner that has stopped needs no silence."""
    owner = evidence.owner
    if owner is not None and owner.is_stopped:
        return None
    threshold = policy.threshold(task, owner)
    if now - evidence.last_heartbeat_at < threshold:
        return Leave(why="fresh")
    heard_at = evidence.listening.silent_since(evidence.last_heartbeat_at, owner, threshold)
    if now - heard_at >= threshold:
        return None
    return Leave(why="outage_grace", until=evidence.listening.outage_grace_until(heard_at, threshold))


@dataclass(frozen=True, slots=True)
class _Decider:
    """A stale task, and all that its verdict depends on."""

    task: LiveTask
    evidence: Evidence
    policy: RecoveryPolicy
    now: datetime

    def decide(self) -> Decision:
        is_claimed = self.task.status is TaskStatus.CLAIMED
        if is_claimed and has_expired(self.task.good_until, self.now):
            return Expire()
        if self._answer_kind is RecoveryKind.SKIP:
            return Hold(until=self.now + self._threshold, is_new=True)
        settled = self._decide_claimed() if is_claimed else self._decide_running()
        if self.task.no_restart is not None and isinstance(settled, (Requeue, Retry)):
            return Fail(reason=self._reason, code=OutcomeCode.TASK_CANCELLED)
        return settled

    def _decide_claimed(self) -> StateChange:
        """Free, unless a hook says otherwise: what never began costs neither a retry nor a crash."""
        answer = self.evidence.hook_answer
        if self._answer_kind is RecoveryKind.FAIL_WITH_BACKOFF:
            return self._retry_with_backoff()
        if answer is not None and answer.run_at is not None:
            return Requeue(reason=self._reason, at=answer.run_at, retry_count=self._retries_used(answer.attempts))
        at = max(self.task.enqueued_at, self._not_before)
        return Requeue(reason=self._reason, at=at, retry_count=self.task.retry_count)

    def _decide_running(self) -> StateChange:
        answer = self.evidence.hook_answer
        if self.task.crash_count + 1 >= self.policy.max_crashes:
            return Fail(reason=self._reason, code=POISON)
        if self._answer_kind is RecoveryKind.FAIL_WITH_BACKOFF:
            return self._retry_with_backoff()
        if answer is not None and answer.run_at is not None:
            if has_expired(self.task.good_until, answer.run_at):
                return Fail(reason=self._reason, code=CRASHED)
            return Retry(reason=self._reason, at=answer.run_at, retry_count=self._retries_used(answer.attempts))
        chance = decide_retry(
            self._retry_state, CRASHED, now=self.now, jitter=stable_jitter(self.task), not_before=self._not_before
        )
        return self._retry(chance.due_at) if isinstance(chance, RetryAt) else Fail(reason=self._reason, code=CRASHED)

    def _retry_with_backoff(self) -> StateChange:
        """After the policy's own delay while retries remain, whatever codes it lists."""
        policy, number = self.task.retry_policy, self.task.retry_count + 1
        if policy is not None:
            due_at = self.now + timedelta(seconds=backoff_delay_s(policy, number, stable_jitter(self.task)))
            chance = retry_if_possible(self._retry_state, due_at)
            if isinstance(chance, RetryAt):
                return self._retry(chance.due_at)
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
        owner, ears = self.evidence.owner, self.evidence.listening
        return self.evidence.reason(is_lost=owner is not None and self.policy.is_lost(owner, ears, self.now))

    @property
    def _threshold(self) -> timedelta:
        return self.policy.threshold(self.task, self.evidence.owner)

    @property
    def _not_before(self) -> datetime:
        return self.now + self.policy.recovery_delay

    @property
    def _retry_state(self) -> RetryState:
        task = self.task
        return RetryState(policy=task.retry_policy, retry_count=task.retry_count, good_until=task.good_until)


def stable_jitter(task: LiveTask) -> float:
    """A draw from 0..1 that is the same whenever the same claim is judged, so that a dry run tells the truth."""
    return zlib.crc32(task.task_id.bytes + task.claim_token.to_bytes(8, "big")) / 0xFFFFFFFF


# What a verdict is based on: the row, the last sign of life, the owner, and how long the judge has listened.

MISSING_STATE: Final = "missing"
"""The state of an owner whose row is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """A CLAIMED or RUNNING row, as it was read."""

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
    """The row of the worker that a task is claimed by, and the settings that it lives by."""

    state: str
    last_heartbeat_at: datetime
    thresholds: WorkerThresholds

    @property
    def is_stopped(self) -> bool:
        return self.state == "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningWindow:
    """Since when silence counts. With neither instant it always has, and ages are plain."""

    listening_since: datetime | None = None
    """The start of the judge's unbroken series of beats."""
    server_started_at: datetime | None = None
    """Given where nobody lives: an owner last seen shortly before may only not have come back yet."""
    blind_until: datetime | None = None
    """Given where all that live have missed a beat: when they count as dead, and ages as plain, unless one beats."""

    def silent_since(self, beat_at: datetime, owner: TaskOwner | None, threshold: timedelta) -> datetime:
        """The instant from which a silence counts: the beat, or the later moment at which the judge began to listen."""
        since = self.listening_since
        if self.server_started_at is not None and owner is not None:
            was_there = owner.last_heartbeat_at >= self.server_started_at - threshold
            since = self.server_started_at if was_there else since
        return beat_at if since is None else max(beat_at, since)

    def outage_grace_until(self, heard_at: datetime, threshold: timedelta) -> datetime:
        """When a silence that counts from `heard_at` condemns, as far as one can tell."""
        over_at = heard_at + threshold
        return over_at if self.blind_until is None else min(over_at, self.blind_until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about the life of a task beside its row."""

    last_heartbeat_at: datetime
    """The newest beat of the row's token, else the claim or the start, which are the first."""
    owner: TaskOwner | None
    listening: ListeningWindow
    hook_answer: Recovery | None = None
    """What a hook said, once it was asked."""

    def reason(self, *, is_lost: bool) -> RecoveryReason:
        if self.owner is None:
            return RecoveryReason.OWNER_MISSING
        if self.owner.is_stopped:
            return RecoveryReason.OWNER_STOPPED
        return RecoveryReason.OWNER_LOST if is_lost else RecoveryReason.HEARTBEAT_LOST


# How patient a judge is, and what it does with the work of the dead.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """Thresholds of silence and what follows them."""

    claimed_threshold: timedelta
    running_threshold: timedelta
    worker_threshold: timedelta
    recovery_delay: timedelta = timedelta(0)
    resilient_multiplier: int = 1
    resilient_flags: frozenset[str] = frozenset()
    max_crashes: int = 10
    honors_owner_thresholds: bool = True
    """Whether an owner with longer thresholds is judged by those; not where the caller has said what silence means."""
    recovers_claimed: bool = True
    recovers_running: bool = True

    @classmethod
    def from_config(cls, config: RecoveryConfig, *, honors_auto_switches: bool = False) -> Self:
        """A judge with these settings; the `auto_*` switches bind a reaper, never a sweep by hand."""
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
        """The silence that condemns this task: the more patient of judge and owner, longer for a resilient one."""
        if task.status is TaskStatus.CLAIMED:
            base = self._longer_threshold(self.claimed_threshold, owner and owner.thresholds.claimed)
        else:
            base = self._longer_threshold(self.running_threshold, owner and owner.thresholds.running)
        return base * self.resilient_multiplier if self.is_resilient(task) else base

    def is_lost(self, owner: TaskOwner, ears: ListeningWindow, now: datetime) -> bool:
        """Whether a worker counts as lost, or has been declared so: a reason to show, never a verdict on its tasks."""
        if owner.state in {"lost", "stopped"}:
            return owner.state == "lost"
        limit = self._longer_threshold(self.worker_threshold, owner.thresholds.worker)
        return now - ears.silent_since(owner.last_heartbeat_at, owner, limit) >= limit

    def _longer_threshold(self, mine: timedelta, theirs: timedelta | None) -> timedelta:
        return max(mine, theirs) if theirs is not None and self.honors_owner_thresholds else mine
