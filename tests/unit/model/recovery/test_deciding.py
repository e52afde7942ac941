"""The decision about tasks whose owner may be gone, line by line."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from horsies.model.recovery.decision import (
    Evidence,
    Expire,
    Fail,
    Hold,
    Leave,
    ListeningWindow,
    LiveTask,
    Recovery,
    RecoveryPolicy,
    RecoveryReason,
    Requeue,
    Retry,
    TaskOwner,
    asks_hooks,
    decide,
)
from horsies.model.recovery.fleet import WorkerThresholds
from horsies.model.retry import RetryPolicy
from horsies.model.task import TaskStatus
from horsies.model.task_result import OperationalErrorCode, OutcomeCode

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FRESH, DISABLED = Leave(why="fresh"), Leave(why="disabled")
CRASHED, POISON = OperationalErrorCode.WORKER_CRASHED, OperationalErrorCode.POISON_TASK
HEARTBEAT_LOST, OWNER_STOPPED = RecoveryReason.HEARTBEAT_LOST, RecoveryReason.OWNER_STOPPED
LISTED = RetryPolicy.fixed([10, 20], auto_retry_for=["WORKER_CRASHED"], jitter=False)
UNLISTED = RetryPolicy.fixed([10, 20], auto_retry_for=["BANK_UNREACHABLE"], jitter=False)
POLICY = RecoveryPolicy(
    claimed_threshold=timedelta(seconds=120),
    running_threshold=timedelta(seconds=300),
    worker_threshold=timedelta(seconds=300),
    resilient_multiplier=3,
    resilient_flags=frozenset({"tough"}),
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def ahead(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_task(status: str, **others: Any) -> LiveTask:
    row: dict[str, Any] = {"enqueued_at": ago(9_000), "claim_token": 3} | others
    return LiveTask(task_id=UUID(int=7), status=TaskStatus(status), **row)


def an_owner(state: str = "running", *, silent_s: float = 0, **thresholds_s: float) -> TaskOwner:
    published = {name: timedelta(seconds=value) for name, value in thresholds_s.items()}
    return TaskOwner(state=state, last_heartbeat_at=ago(silent_s), thresholds=WorkerThresholds(**published))


ALIVE, PLAIN = an_owner(), ListeningWindow()


def verdict(
    task: LiveTask,
    silent_s: float,
    *,
    owner: TaskOwner | None = ALIVE,
    answer: Recovery | None = None,
    ears: ListeningWindow = PLAIN,
    policy: RecoveryPolicy = POLICY,
) -> object:
    return decide(
        task, Evidence(last_heartbeat_at=ago(silent_s), owner=owner, hook_answer=answer, listening=ears), policy, NOW
    )


def _requeued(reason: RecoveryReason = HEARTBEAT_LOST, at: datetime = NOW, retry_count: int = 0) -> Requeue:
    return Requeue(reason=reason, at=at, retry_count=retry_count)


def _retried(at: datetime, retry_count: int = 1, reason: RecoveryReason = HEARTBEAT_LOST) -> Retry:
    return Retry(reason=reason, at=at, retry_count=retry_count)


def _failed(code: Any = CRASHED, reason: RecoveryReason = HEARTBEAT_LOST) -> Fail:
    return Fail(reason=reason, code=code)


CLAIMED, RUNNING = a_task("CLAIMED"), a_task("RUNNING")


@pytest.mark.parametrize(
    ("task", "silent_s", "expected"),
    [
        pytest.param(CLAIMED, 119, FRESH, id="D4 a claim younger than the claimed threshold is fresh"),
        pytest.param(CLAIMED, 120, _requeued(), id="D5 a claim as old as the threshold goes back for free"),
        pytest.param(replace(CLAIMED, good_until=ago(1)), 119, FRESH, id="D3 a fresh claim is its owner's to expire"),
        pytest.param(replace(CLAIMED, good_until=ago(0)), 120, Expire(), id="D3 a stale claim past its time expires"),
        pytest.param(RUNNING, 299, FRESH, id="D7 a run younger than the running threshold is fresh"),
        pytest.param(RUNNING, 300, _failed(), id="D10 a stale run without a policy fails"),
        pytest.param(
            replace(RUNNING, retry_policy=UNLISTED), 300, _failed(), id="D10 so does one that does not list it"
        ),
        pytest.param(replace(RUNNING, retry_policy=LISTED), 300, _retried(ahead(10)), id="D9 a listed one is retried"),
        pytest.param(
            replace(RUNNING, retry_policy=LISTED, retry_count=1),
            300,
            _retried(ahead(20), 2),
            id="D9 with the next interval",
        ),
        pytest.param(replace(RUNNING, retry_policy=LISTED, retry_count=2), 300, _failed(), id="D10 no retries left"),
        pytest.param(
            replace(RUNNING, retry_policy=LISTED, good_until=ahead(10)), 300, _failed(), id="D10 due at good_until"
        ),
        pytest.param(
            replace(RUNNING, retry_policy=LISTED, good_until=ahead(11)), 300, _retried(ahead(10)), id="D9 due before it"
        ),
        pytest.param(
            replace(RUNNING, retry_policy=LISTED, crash_count=9),
            300,
            _failed(POISON),
            id="D8 the tenth crash is poison",
        ),
        pytest.param(
            replace(RUNNING, retry_policy=LISTED, crash_count=8), 300, _retried(ahead(10)), id="D8 the ninth is not"
        ),
        pytest.param(
            replace(RUNNING, recovery_hold_until=ahead(1)), 9_000, Hold(until=ahead(1)), id="D2 a hold comes first"
        ),
        pytest.param(replace(RUNNING, recovery_hold_until=ago(0)), 300, _failed(), id="D2 a hold that is over is none"),
        pytest.param(
            replace(RUNNING, retry_policy=LISTED, no_restart="paused"),
            300,
            _failed(OutcomeCode.TASK_CANCELLED),
            id="a run that was paused is not started again",
        ),
        pytest.param(replace(RUNNING, no_restart="paused"), 300, _failed(), id="one that would fail anyway fails"),
    ],
)
def test_a_silent_task(task: LiveTask, silent_s: float, expected: object) -> None:
    assert verdict(task, silent_s) == expected


@pytest.mark.parametrize(
    ("owner", "silent_s", "reason"),
    [
        pytest.param(an_owner("stopped"), 0, RecoveryReason.OWNER_STOPPED, id="stopped: at once"),
        pytest.param(None, 300, RecoveryReason.OWNER_MISSING, id="missing: after the threshold"),
        pytest.param(an_owner("lost"), 300, RecoveryReason.OWNER_LOST, id="declared lost: after the threshold"),
        pytest.param(an_owner(silent_s=300), 300, RecoveryReason.OWNER_LOST, id="as good as lost: the same"),
        pytest.param(an_owner(silent_s=299), 300, RecoveryReason.HEARTBEAT_LOST, id="alive: its child is not"),
    ],
)
@pytest.mark.parametrize("status", ["CLAIMED", "RUNNING"])
def test_the_owner_is_the_reason(status: str, owner: TaskOwner | None, silent_s: float, reason: RecoveryReason) -> None:
    settled = verdict(a_task(status), silent_s, owner=owner)
    assert settled == (_requeued(reason) if status == "CLAIMED" else _failed(reason=reason))


@pytest.mark.parametrize("owner", [None, an_owner("lost")], ids=["missing", "lost"])
def test_an_owner_that_is_gone_is_no_verdict_before_the_threshold(owner: TaskOwner | None) -> None:
    assert verdict(RUNNING, 299, owner=owner) == verdict(CLAIMED, 119, owner=owner) == FRESH


@pytest.mark.parametrize(
    ("task", "owner", "silent_s", "is_fresh"),
    [
        pytest.param(RUNNING, an_owner(running=600), 599, True, id="an owner more patient than the judge"),
        pytest.param(RUNNING, an_owner(running=600), 600, False, id="and no longer than it asks"),
        pytest.param(RUNNING, an_owner(running=60), 299, True, id="a judge more patient than the owner"),
        pytest.param(a_task("RUNNING", flags={"tough": True}), an_owner(), 899, True, id="a resilient task, 3 x"),
        pytest.param(a_task("RUNNING", flags={"tough": True}), None, 899, True, id="orphans too"),
        pytest.param(a_task("CLAIMED", flags={"tough": True}), None, 359, True, id="claims too"),
        pytest.param(a_task("RUNNING", flags={"tough": True}), an_owner(), 900, False, id="and no longer"),
        pytest.param(a_task("RUNNING", flags={"tough": False}), an_owner(), 300, False, id="a flag switched off"),
        pytest.param(a_task("RUNNING", flags={"tough": True}), an_owner(running=400), 1199, True, id="both together"),
        pytest.param(a_task("RUNNING", flags={"tough": True}), an_owner("stopped"), 0, False, id="stopped is certain"),
    ],
)
def test_the_effective_threshold(task: LiveTask, owner: TaskOwner | None, silent_s: float, is_fresh: bool) -> None:
    assert (verdict(task, silent_s, owner=owner) == FRESH) == is_fresh


def test_the_owners_patience_does_not_count_where_the_caller_has_said_what_silence_means() -> None:
    strict = replace(POLICY, honors_owner_thresholds=False)
    assert verdict(RUNNING, 300, owner=an_owner(running=600), policy=strict) == _failed()


@pytest.mark.parametrize("listening_s", [0, 299])
def test_silence_counts_only_while_the_judge_was_listening(listening_s: float) -> None:
    spared = verdict(RUNNING, 9_000, ears=ListeningWindow(listening_since=ago(listening_s)))
    assert spared == Leave(why="outage_grace", until=ahead(300 - listening_s))
    assert verdict(RUNNING, 9_000, ears=ListeningWindow(listening_since=ago(300))) == _failed()


def test_where_all_live_workers_are_deaf_outage_grace_lasts_until_they_count_as_dead() -> None:
    deaf = ListeningWindow(listening_since=NOW, blind_until=ahead(20))
    assert verdict(RUNNING, 9_000, ears=deaf) == Leave(why="outage_grace", until=ahead(20))


def test_outage_grace_knows_no_stopped_owner() -> None:
    ears = ListeningWindow(listening_since=NOW)
    assert verdict(RUNNING, 0, owner=an_owner("stopped"), ears=ears) == _failed(reason=OWNER_STOPPED)


def test_what_is_fresh_by_its_plain_age_needs_no_outage_grace() -> None:
    assert verdict(RUNNING, 299, ears=ListeningWindow(listening_since=NOW)) == FRESH


@pytest.mark.parametrize(
    ("owner", "is_spared"),
    [
        pytest.param(an_owner(silent_s=400), True, id="an owner seen within a threshold before the start"),
        pytest.param(an_owner(silent_s=401), False, id="one seen before that"),
        pytest.param(None, False, id="one that is missing"),
    ],
)
def test_where_nobody_listens_a_server_just_started_spares_those_it_may_have_cut_off(
    owner: TaskOwner | None, is_spared: bool
) -> None:
    spared = verdict(RUNNING, 400, owner=owner, ears=ListeningWindow(server_started_at=ago(100)))
    assert (spared == Leave(why="outage_grace", until=ahead(200))) == is_spared


def test_that_lasts_one_threshold() -> None:
    owner = an_owner(silent_s=400)
    assert isinstance(verdict(RUNNING, 400, owner=owner, ears=ListeningWindow(server_started_at=ago(300))), Fail)


@pytest.mark.parametrize("task", [CLAIMED, RUNNING, replace(CLAIMED, good_until=ago(1))])
def test_a_reaper_that_is_switched_off_leaves(task: LiveTask) -> None:
    off = replace(POLICY, recovers_claimed=False, recovers_running=False)
    assert verdict(task, 9_000, policy=off) == DISABLED
    assert verdict(task, 1, policy=off) == FRESH


def test_a_recovered_task_starts_after_the_recovery_delay() -> None:
    patient = replace(POLICY, recovery_delay=timedelta(seconds=30))
    assert verdict(CLAIMED, 120, policy=patient) == _requeued(at=ahead(30))
    assert verdict(replace(RUNNING, retry_policy=LISTED), 300, policy=patient) == _retried(ahead(30))


def test_a_claim_that_was_due_later_still_is() -> None:
    assert verdict(replace(CLAIMED, enqueued_at=ahead(5)), 120) == _requeued(at=ahead(5))


@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        pytest.param(CLAIMED, Recovery.default(), _requeued(), id="default changes nothing"),
        pytest.param(CLAIMED, Recovery.reschedule(ago(5)), _requeued(at=ago(5)), id="reschedule is exact"),
        pytest.param(
            RUNNING, Recovery.reschedule(ahead(7), attempts=4), _retried(ahead(7), 4), id="with as many retries spent"
        ),
        pytest.param(
            replace(RUNNING, retry_count=2), Recovery.reschedule(ahead(7)), _retried(ahead(7), 2), id="or as before"
        ),
        pytest.param(
            replace(RUNNING, good_until=ahead(7)), Recovery.reschedule(ahead(7)), _failed(), id="never past good_until"
        ),
        pytest.param(
            replace(RUNNING, crash_count=9), Recovery.reschedule(ahead(7)), _failed(POISON), id="nor out of poison"
        ),
        pytest.param(
            replace(RUNNING, retry_policy=UNLISTED),
            Recovery.fail_with_backoff(),
            _retried(ahead(10)),
            id="back-off, unlisted",
        ),
        pytest.param(RUNNING, Recovery.fail_with_backoff(), _failed(), id="back-off without a policy fails"),
        pytest.param(
            replace(CLAIMED, retry_policy=UNLISTED), Recovery.fail_with_backoff(), _retried(ahead(10)), id="a claim too"
        ),
        pytest.param(RUNNING, Recovery.skip(), Hold(until=ahead(300), is_new=True), id="skip holds for a threshold"),
        pytest.param(replace(CLAIMED, good_until=ago(1)), Recovery.skip(), Expire(), id="what has expired expires"),
        pytest.param(
            replace(RUNNING, no_restart="cancelled"),
            Recovery.reschedule(ahead(7)),
            _failed(OutcomeCode.TASK_CANCELLED),
            id="a cancelled run is not rescheduled",
        ),
    ],
)
def test_a_hook_says(task: LiveTask, answer: Recovery, expected: object) -> None:
    assert verdict(task, 9_000, answer=answer) == expected


@pytest.mark.parametrize(
    ("given", "is_asked"),
    [
        (_requeued(), True),
        (_retried(NOW), True),
        (_failed(), True),
        (_failed(POISON), False),
        (_failed(OutcomeCode.TASK_CANCELLED), False),
        (Expire(), False),
        (Hold(until=NOW), False),
        (FRESH, False),
    ],
)
def test_hooks_have_a_say_on_what_would_be_settled_by_rule(given: Any, is_asked: bool) -> None:
    assert asks_hooks(given) == is_asked


def test_the_same_claim_always_has_the_same_due_time() -> None:
    jittery = RetryPolicy.fixed([10], auto_retry_for=["WORKER_CRASHED"])
    first = verdict(a_task("RUNNING", retry_policy=jittery), 300)
    assert first == verdict(a_task("RUNNING", retry_policy=jittery), 300)
    assert first != verdict(a_task("RUNNING", retry_policy=jittery, claim_token=4), 300)
