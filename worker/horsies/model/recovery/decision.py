"""The recovery decision about a CLAIMED or RUNNING task whose worker may be dead.

The reaper, manual sweeps, dry runs and all lists of stale tasks use `decide`, so they always agree. It needs stored
data only, not the task's code.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self, TypeAlias
from uuid import UUID

from horsies.model.retry import (
    CRASH,
    AttemptState,
    Cancel,
    Fail,
    Recovery,
    RecoveryKind,
    Retry,
    decide_retry,
    has_expired,
    stored_policy,
)
from horsies.model.settings.recovery import RecoveryConfig
from horsies.model.task import TaskInfo, TaskStatus

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

    @property
    def failed_reason(self) -> str:
        """The `failed_reason` of a task that is retried or requeued."""
        return f"recovered after worker interruption: {self}"


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

    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True)
class Expire:
    """The task was claimed but not started, and is past its `good_until`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hook returned `skip`: leave the task alone until `until`."""

    until: datetime
    is_new: bool = False
    """Decided just now and not stored yet."""
    why: ClassVar[str] = "hook_skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Do nothing: the task is not stale, outage grace applies, or automatic recovery is disabled."""

    why: Literal["fresh", "outage_grace", "disabled"]
    until: datetime | None = None
    """When outage grace ends for this task."""


Decision: TypeAlias = Requeue | Retry | Fail | Cancel | Expire | Hold | Leave


# Arguments of recovery hooks


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
    """The columns of a CLAIMED or RUNNING task that a decision depends on."""

    id: UUID
    status: TaskStatus
    claim_token: int
    enqueued_at: datetime
    retry_count: int = 0
    crash_count: int = 0
    good_until: datetime | None = None
    flags: Mapping[str, bool] = field(default_factory=dict[str, bool])
    task_options: Mapping[str, object] = field(default_factory=dict[str, object])
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
    listening_until: datetime | None = None
    """When the next heartbeat of the observer is overdue. After that, it may have been suspended or cut off, or the
    database clock may have jumped, so no silence counts. None if there is no such limit."""
    server_started_at: datetime | None = None
    """Set if no worker is live: owners seen shortly before the database server started may still reconnect."""
    blind_until: datetime | None = None
    """Set if every live worker has missed a heartbeat: when the last of them becomes stale, unless one recovers."""

    def silent_since(
        self, heartbeat_at: datetime, owner: TaskOwner | None, threshold: timedelta, now: datetime
    ) -> datetime:
        """Return the start of the silence that counts: the last heartbeat, or when the observer connected if later."""
        since = self.listening_since
        if self.listening_until is not None and now > self.listening_until:
            since = now
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
        return now - listening.silent_since(owner.last_heartbeat_at, owner, limit, now) >= limit

    def _longer_threshold(self, observers: timedelta, owners: timedelta | None) -> timedelta:
        # An owner with longer thresholds may also send its heartbeats less often than the observer expects.
        return max(observers, owners) if owners is not None and self.honors_owner_thresholds else observers


# The decision


def decide(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Decision:
    """Decide what to do with a CLAIMED or RUNNING task; `now` is the database time."""
    if task.recovery_hold_until is not None and task.recovery_hold_until > now:
        return Hold(until=task.recovery_hold_until)
    if (leave := _leave_if_not_stale(task, evidence, policy, now)) is not None:
        return leave
    # After the check above, so that only stale tasks are reported as disabled.
    if not policy.may_recover(task):
        return Leave(why="disabled")
    is_claimed, answer = task.status is TaskStatus.CLAIMED, evidence.hook_answer or Recovery.default()
    # Before the hook's answer: an expired task cannot start, so there is nothing left to decide.
    if is_claimed and has_expired(task.good_until, now):
        return Expire()
    if answer.kind is RecoveryKind.SKIP:
        return Hold(until=now + policy.threshold(task, evidence.owner), is_new=True)
    if is_claimed and answer.kind is not RecoveryKind.FAIL_WITH_BACKOFF:
        return _requeue(task, answer, not_before=now + policy.recovery_delay)
    return decide_retry(
        AttemptState(
            policy=stored_policy(task.task_options),
            retry_count=task.retry_count,
            crash_count=task.crash_count,
            max_crashes=policy.max_crashes,
            good_until=task.good_until,
            no_restart=task.no_restart,
        ),
        replace(CRASH, is_crash=not is_claimed),  # a task that did not start did not crash
        now=now,
        jitter=stable_jitter(task),
        not_before=now + policy.recovery_delay if answer.kind is RecoveryKind.DEFAULT else None,
        answer=answer,
    )


def forecast(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> tuple[datetime, Decision]:
    """Return the decision about a task that sends no further heartbeat, and when it is taken: `now` if it is due."""
    owner, at = evidence.owner, max(now, task.recovery_hold_until or now)
    if owner is None or not owner.is_stopped:
        threshold = policy.threshold(task, owner)
        silent_since = evidence.listening.silent_since(evidence.last_heartbeat_at, owner, threshold, now)
        grace_until = evidence.listening.outage_grace_until(silent_since, threshold)
        at = max(at, evidence.last_heartbeat_at + threshold, grace_until)
    # By then, an observer has been connected for long enough.
    return at, decide(task, replace(evidence, listening=ListeningWindow()), policy, at)


def asks_hooks(decision: Decision) -> bool:
    """Whether hooks may change the decision: not for poison, expired tasks, or tasks of a paused or cancelled run."""
    return isinstance(decision, (Requeue, Retry)) or (isinstance(decision, Fail) and decision.code == CRASH.code)


def recovery_reason(evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> RecoveryReason:
    """Return why a stale task counts as interrupted."""
    owner = evidence.owner
    if owner is None:
        return RecoveryReason.OWNER_MISSING
    if owner.is_stopped:
        return RecoveryReason.OWNER_STOPPED
    is_lost = policy.is_lost(owner, evidence.listening, now)
    return RecoveryReason.OWNER_LOST if is_lost else RecoveryReason.HEARTBEAT_LOST


def _requeue(task: LiveTask, answer: Recovery, *, not_before: datetime) -> Requeue | Cancel:
    """Requeue a task that did not start; this costs neither a retry nor a crash, unless a hook decides otherwise."""
    if task.no_restart is not None:
        return Cancel()
    # No check of good_until: if it passes before the task is due, the task expires while it is PENDING.
    # enqueued_at is the due time; keeping it preserves the task's place in its queue.
    at = answer.run_at or max(task.enqueued_at, not_before)
    return Requeue(at=at, retry_count=task.retry_count if answer.attempts is None else answer.attempts)


def _leave_if_not_stale(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Leave | None:
    owner = evidence.owner
    # A stopped owner will not finish its tasks; there is no need to wait for the threshold.
    if owner is not None and owner.is_stopped:
        return None
    threshold = policy.threshold(task, owner)
    if now - evidence.last_heartbeat_at < threshold:
        return Leave(why="fresh")
    silent_since = evidence.listening.silent_since(evidence.last_heartbeat_at, owner, threshold, now)
    if now - silent_since >= threshold:
        return None
    return Leave(why="outage_grace", until=evidence.listening.outage_grace_until(silent_since, threshold))


def stable_jitter(task: LiveTask) -> float:
    """Return jitter from 0 to 1 derived from task id and claim token, so that a dry run shows the real due time."""
    return zlib.crc32(task.id.bytes + task.claim_token.to_bytes(8, "big")) / 0xFFFFFFFF
