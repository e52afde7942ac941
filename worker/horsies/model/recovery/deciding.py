"""The one decision about a task whose owner may be gone.

The reaper, a sweep by hand, its dry run and every list of stale tasks ask it, so they cannot disagree. It uses nothing
but stored data: the task's code need not be at hand.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.model.codes import OperationalErrorCode, OutcomeCode
from horsies.model.expiry import has_expired
from horsies.model.recovery.answers import Wish
from horsies.model.recovery.verdicts import Expire, Fail, Hold, Leave, Requeue, Retry
from horsies.model.retry import Chances, RetryAt, decide_retry, delay_seconds, retry_if_possible
from horsies.model.task import TaskStatus

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.recovery.evidence import Evidence, LiveTask
    from horsies.model.recovery.policy import RecoveryPolicy
    from horsies.model.recovery.verdicts import RecoveryReason, Settling, Verdict

CRASHED: Final = OperationalErrorCode.WORKER_CRASHED
POISON: Final = OperationalErrorCode.POISON_TASK


def decide(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Verdict:
    """What becomes of a CLAIMED or RUNNING task at this instant of the database."""
    if task.recovery_hold_until is not None and task.recovery_hold_until > now:
        return Hold(until=task.recovery_hold_until)
    if (spared := _spared(task, evidence, policy, now)) is not None:
        return spared
    if not policy.may_settle(task):
        return Leave(why="disabled")
    return _Case(task, evidence, policy, now).verdict()


def asks_hooks(verdict: Verdict) -> bool:
    """Whether hooks have a say: not on poison, on what has expired, or on a run that was paused or cancelled."""
    return isinstance(verdict, (Requeue, Retry)) or (isinstance(verdict, Fail) and verdict.code is CRASHED)


def _spared(task: LiveTask, evidence: Evidence, policy: RecoveryPolicy, now: datetime) -> Leave | None:
    """Why silence does not condemn this task. An owner that has stopped needs no silence."""
    owner = evidence.owner
    if owner is not None and owner.is_stopped:
        return None
    threshold = policy.threshold(task, owner)
    if now - evidence.last_beat_at < threshold:
        return Leave(why="fresh")
    heard_at = evidence.ears.last_heard(evidence.last_beat_at, owner, threshold)
    if now - heard_at >= threshold:
        return None
    return Leave(why="amnesty", until=evidence.ears.amnesty_until(heard_at, threshold))


@dataclass(frozen=True, slots=True)
class _Case:
    """A stale task, and all that its verdict depends on."""

    task: LiveTask
    evidence: Evidence
    policy: RecoveryPolicy
    now: datetime

    def verdict(self) -> Verdict:
        is_claimed = self.task.status is TaskStatus.CLAIMED
        if is_claimed and has_expired(self.task.good_until, self.now):
            return Expire()
        if self._wish is Wish.SKIP:
            return Hold(until=self.now + self._threshold, is_new=True)
        settled = self._claimed() if is_claimed else self._running()
        if self.task.no_restart is not None and isinstance(settled, (Requeue, Retry)):
            return Fail(reason=self._reason, code=OutcomeCode.TASK_CANCELLED)
        return settled

    def _claimed(self) -> Settling:
        """Free, unless a hook says otherwise: what never began costs neither a retry nor a crash."""
        answer = self.evidence.answer
        if self._wish is Wish.FAIL_WITH_BACKOFF:
            return self._backed_off()
        if answer is not None and answer.run_at is not None:
            return Requeue(reason=self._reason, at=answer.run_at, retry_count=self._spent(answer.attempts))
        at = max(self.task.enqueued_at, self._not_before)
        return Requeue(reason=self._reason, at=at, retry_count=self.task.retry_count)

    def _running(self) -> Settling:
        answer = self.evidence.answer
        if self.task.crash_count + 1 >= self.policy.max_crashes:
            return Fail(reason=self._reason, code=POISON)
        if self._wish is Wish.FAIL_WITH_BACKOFF:
            return self._backed_off()
        if answer is not None and answer.run_at is not None:
            if has_expired(self.task.good_until, answer.run_at):
                return Fail(reason=self._reason, code=CRASHED)
            return Retry(reason=self._reason, at=answer.run_at, retry_count=self._spent(answer.attempts))
        chance = decide_retry(
            self._chances, CRASHED, now=self.now, jitter=jitter_of(self.task), not_before=self._not_before
        )
        return self._retried(chance.due_at) if isinstance(chance, RetryAt) else Fail(reason=self._reason, code=CRASHED)

    def _backed_off(self) -> Settling:
        """After the policy's own delay while retries remain, whatever codes it lists."""
        policy, number = self.task.policy, self.task.retry_count + 1
        if policy is not None:
            due_at = self.now + timedelta(seconds=delay_seconds(policy, number, jitter_of(self.task)))
            chance = retry_if_possible(self._chances, due_at)
            if isinstance(chance, RetryAt):
                return self._retried(chance.due_at)
        return Fail(reason=self._reason, code=CRASHED)

    def _retried(self, at: datetime) -> Retry:
        return Retry(reason=self._reason, at=at, retry_count=self.task.retry_count + 1)

    def _spent(self, attempts: int | None) -> int:
        return self.task.retry_count if attempts is None else attempts

    @property
    def _wish(self) -> Wish:
        return Wish.DEFAULT if self.evidence.answer is None else self.evidence.answer.wish

    @property
    def _reason(self) -> RecoveryReason:
        owner, ears = self.evidence.owner, self.evidence.ears
        return self.evidence.reason(is_lost=owner is not None and self.policy.is_lost(owner, ears, self.now))

    @property
    def _threshold(self) -> timedelta:
        return self.policy.threshold(self.task, self.evidence.owner)

    @property
    def _not_before(self) -> datetime:
        return self.now + self.policy.recovery_delay

    @property
    def _chances(self) -> Chances:
        task = self.task
        return Chances(policy=task.policy, retry_count=task.retry_count, good_until=task.good_until)


def jitter_of(task: LiveTask) -> float:
    """A draw from 0..1 that is the same whenever the same claim is judged, so that a dry run tells the truth."""
    return zlib.crc32(task.task_id.bytes + task.claim_token.to_bytes(8, "big")) / 0xFFFFFFFF
