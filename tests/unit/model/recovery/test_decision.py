"""The recovery decision about tasks whose worker may be dead, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from horsies.model.recovery.decision import (
    Evidence,
    Expire,
    Hold,
    Leave,
    ListeningWindow,
    LiveTask,
    RecoveryPolicy,
    RecoveryReason,
    Requeue,
    TaskOwner,
    asks_hooks,
    decide,
    recovery_reason,
)
from horsies.model.recovery.fleet import WorkerThresholds
from horsies.model.retry import Cancel, Fail, FailReason, Recovery, Retry, RetryPolicy
from horsies.model.task import TaskStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FRESH, DISABLED = Leave(why="fresh"), Leave(why="disabled")
POISON = Fail(code="POISON_TASK", reason=FailReason.TOO_MANY_CRASHES)
POLICY = RecoveryPolicy(
    claimed_threshold=timedelta(seconds=120),
    running_threshold=timedelta(seconds=300),
    worker_threshold=timedelta(seconds=300),
    resilient_multiplier=3,
    resilient_flags=frozenset({"tough"}),
)


def options_with(policy: RetryPolicy) -> dict[str, object]:
    """The stored options of a task with this policy."""
    return {"retry_policy": policy.model_dump(mode="json")}


LISTED = options_with(RetryPolicy.fixed([10, 20], auto_retry_for=["WORKER_CRASHED"], jitter=False))
UNLISTED = options_with(RetryPolicy.fixed([10, 20], auto_retry_for=["BANK_UNREACHABLE"], jitter=False))


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def ahead(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def make_task(status: str, **others: Any) -> LiveTask:
    row: dict[str, Any] = {"enqueued_at": ago(9_000), "claim_token": 3} | others
    return LiveTask(id=UUID(int=7), status=TaskStatus(status), **row)


def make_owner(state: str = "running", *, silent_s: float = 0, **thresholds_s: float) -> TaskOwner:
    published = {name: timedelta(seconds=value) for name, value in thresholds_s.items()}
    return TaskOwner(state=state, last_heartbeat_at=ago(silent_s), thresholds=WorkerThresholds(**published))


ALIVE, PLAIN = make_owner(), ListeningWindow()


def decision_for(
    task: LiveTask,
    silent_s: float,
    *,
    owner: TaskOwner | None = ALIVE,
    answer: Recovery | None = None,
    listening: ListeningWindow = PLAIN,
    policy: RecoveryPolicy = POLICY,
) -> object:
    evidence = Evidence(last_heartbeat_at=ago(silent_s), owner=owner, hook_answer=answer, listening=listening)
    return decide(task, evidence, policy, NOW)


def _requeued(at: datetime = NOW, retry_count: int = 0) -> Requeue:
    return Requeue(at=at, retry_count=retry_count)


def _retried(at: datetime, retry_count: int = 1) -> Retry:
    return Retry(at=at, retry_count=retry_count)


def _failed(reason: FailReason = FailReason.NO_POLICY) -> Fail:
    return Fail(code="WORKER_CRASHED", reason=reason)


CLAIMED, RUNNING = make_task("CLAIMED"), make_task("RUNNING")


@pytest.mark.parametrize(
    ("task", "silent_s", "expected"),
    [
        pytest.param(CLAIMED, 119, FRESH, id="D4 a claim younger than the claimed threshold is fresh"),
        pytest.param(CLAIMED, 120, _requeued(), id="D5 a stale claim is requeued without a retry"),
        pytest.param(replace(CLAIMED, good_until=ago(1)), 119, FRESH, id="D3 the owner expires a fresh claim"),
        pytest.param(replace(CLAIMED, good_until=ago(0)), 120, Expire(), id="D3 a stale claim past good_until expires"),
        pytest.param(RUNNING, 299, FRESH, id="D7 a running task younger than the threshold is fresh"),
        pytest.param(RUNNING, 300, _failed(), id="D10 a stale running task without a policy fails"),
        pytest.param(
            replace(RUNNING, task_options=UNLISTED),
            300,
            _failed(FailReason.NOT_LISTED),
            id="D10 WORKER_CRASHED not listed",
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED), 300, _retried(ahead(10)), id="D9 WORKER_CRASHED listed: retried"
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED, retry_count=1),
            300,
            _retried(ahead(20), 2),
            id="D9 with the next interval",
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED, retry_count=2),
            300,
            _failed(FailReason.NO_RETRIES_LEFT),
            id="D10 no retries left",
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED, good_until=ahead(10)),
            300,
            _failed(FailReason.TOO_LATE),
            id="D10 due at good_until",
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED, good_until=ahead(11)), 300, _retried(ahead(10)), id="D9 due before it"
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED, crash_count=9),
            300,
            POISON,
            id="D8 the tenth crash is poison",
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED, crash_count=8), 300, _retried(ahead(10)), id="D8 the ninth is not"
        ),
        pytest.param(
            replace(RUNNING, recovery_hold_until=ahead(1)), 9_000, Hold(until=ahead(1)), id="D2 a hold comes first"
        ),
        pytest.param(
            replace(RUNNING, recovery_hold_until=ago(0)), 300, _failed(), id="D2 an expired hold does not count"
        ),
        pytest.param(
            replace(RUNNING, task_options=LISTED, no_restart="paused"),
            300,
            Cancel(),
            id="task of a paused run is not restarted",
        ),
        pytest.param(
            replace(RUNNING, no_restart="paused"), 300, _failed(), id="task of a paused run that fails anyway"
        ),
    ],
)
def test_decision_for_a_silent_task(task: LiveTask, silent_s: float, expected: object) -> None:
    assert decision_for(task, silent_s) == expected


@pytest.mark.parametrize(
    ("owner", "silent_s", "reason"),
    [
        pytest.param(make_owner("stopped"), 0, RecoveryReason.OWNER_STOPPED, id="stopped: immediately"),
        pytest.param(None, 300, RecoveryReason.OWNER_MISSING, id="missing: after the threshold"),
        pytest.param(make_owner("lost"), 300, RecoveryReason.OWNER_LOST, id="declared lost: after the threshold"),
        pytest.param(make_owner(silent_s=300), 300, RecoveryReason.OWNER_LOST, id="silent worker: after the threshold"),
        pytest.param(
            make_owner(silent_s=299), 300, RecoveryReason.HEARTBEAT_LOST, id="live worker: only the task is silent"
        ),
    ],
)
@pytest.mark.parametrize("status", ["CLAIMED", "RUNNING"])
def test_owner_state_determines_the_reason(
    status: str, owner: TaskOwner | None, silent_s: float, reason: RecoveryReason
) -> None:
    decision = decision_for(make_task(status), silent_s, owner=owner)
    assert decision == (_requeued() if status == "CLAIMED" else _failed())
    evidence = Evidence(last_heartbeat_at=ago(silent_s), owner=owner, listening=PLAIN)
    assert recovery_reason(evidence, POLICY, NOW) == reason


@pytest.mark.parametrize("owner", [None, make_owner("lost")], ids=["missing", "lost"])
def test_dead_owner_does_not_shorten_the_threshold(owner: TaskOwner | None) -> None:
    assert decision_for(RUNNING, 299, owner=owner) == decision_for(CLAIMED, 119, owner=owner) == FRESH


@pytest.mark.parametrize(
    ("task", "owner", "silent_s", "is_fresh"),
    [
        pytest.param(RUNNING, make_owner(running=600), 599, True, id="owner has the longer threshold"),
        pytest.param(RUNNING, make_owner(running=600), 600, False, id="past the owner's longer threshold"),
        pytest.param(RUNNING, make_owner(running=60), 299, True, id="observer has the longer threshold"),
        pytest.param(
            make_task("RUNNING", flags={"tough": True}), make_owner(), 899, True, id="resilient task: three times"
        ),
        pytest.param(make_task("RUNNING", flags={"tough": True}), None, 899, True, id="resilient orphan"),
        pytest.param(make_task("CLAIMED", flags={"tough": True}), None, 359, True, id="resilient claim"),
        pytest.param(
            make_task("RUNNING", flags={"tough": True}), make_owner(), 900, False, id="resilient task past three times"
        ),
        pytest.param(make_task("RUNNING", flags={"tough": False}), make_owner(), 300, False, id="flag set to false"),
        pytest.param(
            make_task("RUNNING", flags={"tough": True}),
            make_owner(running=400),
            1199,
            True,
            id="longer owner threshold and resilient",
        ),
        pytest.param(
            make_task("RUNNING", flags={"tough": True}),
            make_owner("stopped"),
            0,
            False,
            id="stopped owner needs no threshold",
        ),
    ],
)
def test_effective_threshold(task: LiveTask, owner: TaskOwner | None, silent_s: float, is_fresh: bool) -> None:
    assert (decision_for(task, silent_s, owner=owner) == FRESH) == is_fresh


def test_owner_threshold_is_ignored_if_not_honored() -> None:
    strict = replace(POLICY, honors_owner_thresholds=False)
    assert decision_for(RUNNING, 300, owner=make_owner(running=600), policy=strict) == _failed()


@pytest.mark.parametrize("listening_s", [0, 299])
def test_silence_counts_only_while_the_observer_was_connected(listening_s: float) -> None:
    exempt = decision_for(RUNNING, 9_000, listening=ListeningWindow(listening_since=ago(listening_s)))
    assert exempt == Leave(why="outage_grace", until=ahead(300 - listening_s))
    assert decision_for(RUNNING, 9_000, listening=ListeningWindow(listening_since=ago(300))) == _failed()


def test_silence_does_not_count_if_the_observer_missed_a_heartbeat() -> None:
    def listening(until: datetime) -> ListeningWindow:
        return ListeningWindow(listening_since=ago(9_000), listening_until=until)

    assert decision_for(RUNNING, 9_000, listening=listening(NOW)) == _failed()
    assert decision_for(RUNNING, 9_000, listening=listening(ago(1))) == Leave(why="outage_grace", until=ahead(300))


def test_worker_is_not_lost_if_the_observer_missed_a_heartbeat() -> None:
    owner = make_owner(silent_s=9_000)
    assert POLICY.is_lost(owner, ListeningWindow(listening_until=NOW), NOW)
    assert not POLICY.is_lost(owner, ListeningWindow(listening_until=ago(1)), NOW)


def test_outage_grace_ends_when_blind_workers_count_as_dead() -> None:
    blind = ListeningWindow(listening_since=NOW, blind_until=ahead(20))
    assert decision_for(RUNNING, 9_000, listening=blind) == Leave(why="outage_grace", until=ahead(20))


def test_outage_grace_does_not_apply_to_stopped_owners() -> None:
    listening = ListeningWindow(listening_since=NOW)
    assert decision_for(RUNNING, 0, owner=make_owner("stopped"), listening=listening) == _failed()


def test_fresh_task_needs_no_outage_grace() -> None:
    assert decision_for(RUNNING, 299, listening=ListeningWindow(listening_since=NOW)) == FRESH


@pytest.mark.parametrize(
    ("owner", "is_exempt"),
    [
        pytest.param(make_owner(silent_s=400), True, id="owner seen within a threshold before the start"),
        pytest.param(make_owner(silent_s=401), False, id="owner seen earlier"),
        pytest.param(None, False, id="missing owner"),
    ],
)
def test_server_restart_exempts_recently_seen_owners(owner: TaskOwner | None, is_exempt: bool) -> None:
    exempt = decision_for(RUNNING, 400, owner=owner, listening=ListeningWindow(server_started_at=ago(100)))
    assert (exempt == Leave(why="outage_grace", until=ahead(200))) == is_exempt


def test_exemption_after_restart_lasts_one_threshold() -> None:
    owner = make_owner(silent_s=400)
    assert isinstance(
        decision_for(RUNNING, 400, owner=owner, listening=ListeningWindow(server_started_at=ago(300))), Fail
    )


@pytest.mark.parametrize("task", [CLAIMED, RUNNING, replace(CLAIMED, good_until=ago(1))])
def test_disabled_recovery_leaves_tasks_alone(task: LiveTask) -> None:
    off = replace(POLICY, recovers_claimed=False, recovers_running=False)
    assert decision_for(task, 9_000, policy=off) == DISABLED
    assert decision_for(task, 1, policy=off) == FRESH


def test_recovered_task_waits_for_the_recovery_delay() -> None:
    delayed = replace(POLICY, recovery_delay=timedelta(seconds=30))
    assert decision_for(CLAIMED, 120, policy=delayed) == _requeued(at=ahead(30))
    assert decision_for(replace(RUNNING, task_options=LISTED), 300, policy=delayed) == _retried(ahead(30))


def test_requeued_task_keeps_its_later_due_time() -> None:
    assert decision_for(replace(CLAIMED, enqueued_at=ahead(5)), 120) == _requeued(at=ahead(5))


@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        pytest.param(CLAIMED, Recovery.default(), _requeued(), id="default changes nothing"),
        pytest.param(CLAIMED, Recovery.reschedule(ago(5)), _requeued(at=ago(5)), id="reschedule is exact"),
        pytest.param(
            RUNNING,
            Recovery.reschedule(ahead(7), attempts=4),
            _retried(ahead(7), 4),
            id="reschedule sets the retry count",
        ),
        pytest.param(
            replace(RUNNING, retry_count=2),
            Recovery.reschedule(ahead(7)),
            _retried(ahead(7), 2),
            id="reschedule keeps the retry count",
        ),
        pytest.param(
            replace(RUNNING, good_until=ahead(7)),
            Recovery.reschedule(ahead(7)),
            _failed(FailReason.TOO_LATE),
            id="reschedule past good_until fails",
        ),
        pytest.param(
            replace(RUNNING, crash_count=9),
            Recovery.reschedule(ahead(7)),
            POISON,
            id="reschedule does not save poison",
        ),
        pytest.param(
            replace(RUNNING, task_options=UNLISTED),
            Recovery.fail_with_backoff(),
            _retried(ahead(10)),
            id="backoff with unlisted code",
        ),
        pytest.param(RUNNING, Recovery.fail_with_backoff(), _failed(), id="backoff without a policy fails"),
        pytest.param(
            replace(CLAIMED, task_options=UNLISTED),
            Recovery.fail_with_backoff(),
            _retried(ahead(10)),
            id="backoff of a claim",
        ),
        pytest.param(RUNNING, Recovery.skip(), Hold(until=ahead(300), is_new=True), id="skip holds for a threshold"),
        pytest.param(replace(CLAIMED, good_until=ago(1)), Recovery.skip(), Expire(), id="skip does not prevent expiry"),
        pytest.param(
            replace(RUNNING, no_restart="cancelled"),
            Recovery.reschedule(ahead(7)),
            Cancel(),
            id="task of a cancelled run is not rescheduled",
        ),
    ],
)
def test_decision_with_a_hook_answer(task: LiveTask, answer: Recovery, expected: object) -> None:
    assert decision_for(task, 9_000, answer=answer) == expected


@pytest.mark.parametrize(
    ("given", "is_asked"),
    [
        (_requeued(), True),
        (_retried(NOW), True),
        (_failed(), True),
        (POISON, False),
        (Cancel(), False),
        (Expire(), False),
        (Hold(until=NOW), False),
        (FRESH, False),
    ],
)
def test_decisions_that_hooks_may_change(given: Any, is_asked: bool) -> None:
    assert asks_hooks(given) == is_asked


def test_jitter_is_stable_per_claim() -> None:
    jittery = options_with(RetryPolicy.fixed([10], auto_retry_for=["WORKER_CRASHED"]))
    first = decision_for(make_task("RUNNING", task_options=jittery), 300)
    assert first == decision_for(make_task("RUNNING", task_options=jittery), 300)
    assert first != decision_for(make_task("RUNNING", task_options=jittery, claim_token=4), 300)
