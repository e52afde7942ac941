from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from horsies.errors import TaskDefinitionError
from horsies.model.retry import (
    CRASH,
    SHUTDOWN,
    TIMEOUT,
    AttemptState,
    Cancel,
    Cause,
    Fail,
    FailReason,
    Recovery,
    RecoveryKind,
    Retry,
    RetryPolicy,
    backoff_delay_s,
    decide_retry,
    stored_policy,
)
from horsies.model.task_result import NEVER_RETRIED, OperationalErrorCode, OutcomeCode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT_POLICY = RetryPolicy.fixed([60, 300], auto_retry_for=[OutcomeCode.TASK_TIMEOUT], jitter=False)

fixed_policies = st.builds(
    RetryPolicy.fixed,
    st.lists(st.integers(1, 86_400), min_size=1, max_size=20),
    auto_retry_for=st.just(["A"]),
    jitter=st.booleans(),
)
exponential_policies = st.builds(
    RetryPolicy.exponential,
    st.integers(1, 86_400),
    max_retries=st.integers(1, 20),
    auto_retry_for=st.just(["A"]),
    jitter=st.booleans(),
    max_delay_seconds=st.none() | st.integers(1, 10**6),
)
policies = fixed_policies | exponential_policies


def test_defaults() -> None:
    policy = RetryPolicy(auto_retry_for=["CARD_DECLINED"])

    assert (policy.max_retries, policy.intervals, policy.backoff_strategy) == (3, (60, 300, 900), "fixed")
    assert (policy.jitter, policy.max_delay_seconds) == (True, None)


def test_policy_lists_are_immutable_and_stored_as_lists() -> None:
    policy = RetryPolicy(intervals=[1, 2, 3], auto_retry_for=["A"])

    assert (policy.intervals, policy.auto_retry_for) == ((1, 2, 3), ("A",))
    stored = policy.model_dump(mode="json")
    assert (stored["intervals"], stored["auto_retry_for"]) == ([1, 2, 3], ["A"])
    assert RetryPolicy.model_validate(stored) == policy


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_retries": 0, "intervals": [1]},
        {"max_retries": 21, "intervals": [1]},
        {"max_retries": True, "intervals": [1]},
        {"intervals": []},
        {"intervals": [60, 0, 60]},
        {"intervals": [60, 86_401, 60]},
        {"intervals": [60, 300]},
        {"backoff_strategy": "exponential"},
        {"backoff_strategy": "linear"},
        {"max_delay_seconds": 0},
        {"auto_retry_for": []},
        {"auto_retry_for": ["ValueError"]},
        {"auto_retry_for": [OperationalErrorCode.POISON_TASK]},
        {"tries": 3},
    ],
)
def test_invalid_policy_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="RetryPolicy"):
        RetryPolicy.model_validate({"auto_retry_for": ["A"], **wrong})


@pytest.mark.parametrize("code", sorted(NEVER_RETRIED))
def test_codes_that_are_never_retried_cannot_be_listed(code: str) -> None:
    with pytest.raises(ValueError, match=f"{code} is never retried"):
        RetryPolicy(auto_retry_for=[code])


def test_codes_must_be_listed() -> None:
    with pytest.raises(ValueError, match="auto_retry_for"):
        RetryPolicy()  # pyright: ignore[reportCallIssue]


def test_error_lists_all_faults_in_one_line() -> None:
    with pytest.raises(ValueError, match="RetryPolicy") as caught:
        RetryPolicy(max_retries=2, max_delay_seconds=-1, auto_retry_for=["A", "ValueError"], tries=3)  # pyright: ignore[reportCallIssue]

    assert isinstance(caught.value, TaskDefinitionError)
    assert caught.value.message.split("; ") == [
        "RetryPolicy: backoff_strategy: fixed needs as many intervals as max_retries (2), got 3",
        "max_delay_seconds: must be more than 0",
        "auto_retry_for[1]: must be in UPPER_SNAKE (use exception_mapper to map exception classes to codes)",
        "tries: is unknown",
    ]


def test_error_points_at_the_callers_line() -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        RetryPolicy.exponential(0, max_retries=1, auto_retry_for=["A"])

    assert caught.value.location is not None
    assert caught.value.location.file == __file__


@pytest.mark.parametrize(("count", "edge"), [(0, "at least 1"), (21, "at most 20")])
def test_wrong_number_of_intervals_is_reported_for_intervals(count: int, edge: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        RetryPolicy.fixed([60] * count, auto_retry_for=["A"])

    assert caught.value.message == f"RetryPolicy: intervals: must have a length of {edge}"


@pytest.mark.parametrize(
    ("intervals", "codes", "message"),
    [
        (5, ["A"], "intervals: must be a list of delays in seconds"),
        ("5", ["A"], "intervals: must be a list of delays in seconds"),
        ([5], "TIMEOUT", "auto_retry_for: must be a list of error codes"),
        ([5], OSError, "auto_retry_for: must be a list of error codes"),
        (
            [5],
            [OSError],
            "auto_retry_for[0]: must be in UPPER_SNAKE (use exception_mapper to map exception classes to codes)",
        ),
    ],
)
def test_wrong_types_of_intervals_and_codes(intervals: Any, codes: Any, message: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        RetryPolicy.fixed(intervals, auto_retry_for=codes)

    assert caught.value.message == f"RetryPolicy: {message}"


def test_single_string_is_not_a_list_of_codes() -> None:
    with pytest.raises(TaskDefinitionError, match="must be a list of error codes"):
        RetryPolicy.exponential(5, max_retries=1, auto_retry_for="TIMEOUT")


def test_policy_in_another_model_reports_its_path() -> None:
    class Job(BaseModel):
        policy: RetryPolicy

    with pytest.raises(ValidationError, match=r"policy\.auto_retry_for"):
        Job.model_validate({"policy": {}})


def test_stored_policy_round_trip() -> None:
    policy = RetryPolicy.exponential(5, max_retries=4, auto_retry_for=[OutcomeCode.TASK_TIMEOUT, "CARD_DECLINED"])

    assert RetryPolicy.model_validate_json(policy.model_dump_json()) == policy
    assert RetryPolicy.model_validate(policy.model_dump(mode="json")) == policy


def test_policy_is_frozen() -> None:
    with pytest.raises(ValidationError):
        TIMEOUT_POLICY.max_retries = 5  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("stored", [{}, {"retry_policy": None}, {"retry_policy": {"max_retries": 99}}])
def test_missing_or_invalid_stored_policy_counts_as_none(stored: dict[str, object]) -> None:
    assert stored_policy(stored) is None


@pytest.mark.parametrize(("retry_number", "expected"), [(1, 60.0), (2, 300.0)])
def test_fixed_delays_follow_the_intervals(retry_number: int, expected: float) -> None:
    assert backoff_delay_s(TIMEOUT_POLICY, retry_number, 1.0) == expected


@pytest.mark.parametrize(("retry_number", "expected"), [(1, 5), (2, 10), (3, 20), (4, 30)])
def test_exponential_delays_double_up_to_the_cap(retry_number: int, expected: float) -> None:
    policy = RetryPolicy.exponential(5, max_retries=9, auto_retry_for=["A"], jitter=False, max_delay_seconds=30)

    assert backoff_delay_s(policy, retry_number, 0.0) == expected


@given(policy=policies, retry=st.integers(1, 20), jitter=st.floats(0, 1))
def test_jitter_adds_at_most_a_quarter(policy: RetryPolicy, retry: int, jitter: float) -> None:
    retry_number = min(retry, policy.max_retries)
    without = backoff_delay_s(policy, retry_number, 0.0)
    delay = backoff_delay_s(policy, retry_number, jitter)

    assert without <= delay <= without * 1.25


@given(policy=policies, retry=st.integers(1, 20), jitter=st.floats(0, 1))
def test_no_delay_exceeds_the_cap(policy: RetryPolicy, retry: int, jitter: float) -> None:
    cap = policy.max_delay_seconds
    assert cap is None or backoff_delay_s(policy, min(retry, policy.max_retries), jitter) <= cap


@pytest.mark.parametrize(("retry_number", "jitter"), [(0, 0.5), (3, 0.5), (1, -0.1), (1, 1.1), (1, float("nan"))])
def test_invalid_retry_number_or_jitter_is_rejected(retry_number: int, jitter: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        backoff_delay_s(TIMEOUT_POLICY, retry_number, jitter)


# What follows a failed attempt

LISTED_CODES = ("A", "TASK_TIMEOUT", "WORKER_CRASHED", "SHUTDOWN")
HOUR = timedelta(hours=1)


def listing(*codes: str) -> RetryPolicy:
    return RetryPolicy.fixed([60, 300], auto_retry_for=codes, jitter=False)


def state(policy: RetryPolicy | None = None, **fields: Any) -> AttemptState:
    return AttemptState(policy=policy, max_crashes=3, **fields)


def retry_in(seconds: float, retry_count: int = 1) -> Retry:
    return Retry(at=NOW + timedelta(seconds=seconds), retry_count=retry_count)


def fail(code: str | None, reason: FailReason) -> Fail:
    return Fail(code=code, reason=reason)


@pytest.mark.parametrize(
    ("task", "cause", "expected"),
    [
        (state(listing("A")), Cause(code="A"), retry_in(60)),
        (state(listing("A"), retry_count=1), Cause(code="A"), retry_in(300, 2)),
        (state(), Cause(code="A"), fail("A", FailReason.NO_POLICY)),
        (state(listing("A")), Cause(code="B"), fail("B", FailReason.NOT_LISTED)),
        (state(listing("A")), Cause(code=None), fail(None, FailReason.NOT_LISTED)),
        (state(listing("A"), retry_count=2), Cause(code="A"), fail("A", FailReason.NO_RETRIES_LEFT)),
        (state(listing("A"), retry_count=2**31 - 1), Cause(code="A"), fail("A", FailReason.NO_RETRIES_LEFT)),
        (state(listing("TASK_TIMEOUT")), TIMEOUT, retry_in(60)),
        (state(listing("WORKER_CRASHED")), TIMEOUT, fail("TASK_TIMEOUT", FailReason.NOT_LISTED)),
        (state(listing("WORKER_CRASHED")), CRASH, retry_in(60)),
        (state(listing("SHUTDOWN")), CRASH, fail("WORKER_CRASHED", FailReason.NOT_LISTED)),
        (state(listing("WORKER_CRASHED"), crash_count=1), CRASH, retry_in(60)),
        (state(listing("WORKER_CRASHED"), crash_count=2), CRASH, fail("POISON_TASK", FailReason.TOO_MANY_CRASHES)),
        (state(crash_count=2), CRASH, fail("POISON_TASK", FailReason.TOO_MANY_CRASHES)),
        (state(listing("SHUTDOWN")), SHUTDOWN, retry_in(0)),
        (state(listing("WORKER_CRASHED"), crash_count=2), SHUTDOWN, retry_in(0)),
        (state(listing("SHUTDOWN"), retry_count=2), SHUTDOWN, fail("SHUTDOWN", FailReason.NO_RETRIES_LEFT)),
        (state(listing("A")), SHUTDOWN, fail("SHUTDOWN", FailReason.NOT_LISTED)),
        (state(listing("A"), no_restart="paused"), Cause(code="A"), Cancel()),
        (state(listing("A"), no_restart="paused"), Cause(code="B"), fail("B", FailReason.NOT_LISTED)),
    ],
)
def test_what_follows_a_failed_attempt(task: AttemptState, cause: Cause, expected: object) -> None:
    assert decide_retry(task, cause, now=NOW, jitter=0.5) == expected


@pytest.mark.parametrize(("seconds", "is_retried"), [(61, True), (60, False), (59, False)])
def test_retry_must_be_due_before_good_until(seconds: int, is_retried: bool) -> None:
    task = state(listing("A"), good_until=NOW + timedelta(seconds=seconds))

    decision = decide_retry(task, Cause(code="A"), now=NOW, jitter=0.0)

    assert decision == (retry_in(60) if is_retried else fail("A", FailReason.TOO_LATE))


@pytest.mark.parametrize(("not_before_s", "due_s"), [(10, 60), (90, 90)])
def test_retry_waits_for_the_later_of_both_delays(not_before_s: int, due_s: int) -> None:
    not_before = NOW + timedelta(seconds=not_before_s)

    decision = decide_retry(state(listing("A")), Cause(code="A"), now=NOW, jitter=0.0, not_before=not_before)

    assert decision == retry_in(due_s)


states = st.builds(
    AttemptState,
    policy=st.none() | policies | st.builds(listing, st.sampled_from(LISTED_CODES)),
    retry_count=st.integers(0, 25),
    crash_count=st.integers(0, 5),
    max_crashes=st.integers(1, 5),
    good_until=st.none() | st.timedeltas(-HOUR, 100 * HOUR).map(NOW.__add__),
    no_restart=st.sampled_from([None, "paused", "cancelled"]),
)
causes = st.sampled_from([CRASH, SHUTDOWN, TIMEOUT, Cause(code="A"), Cause(code=None)])
answers = st.sampled_from([None, Recovery.default(), Recovery.fail_with_backoff(), Recovery.reschedule(NOW + HOUR)])


@given(task=states, cause=causes, jitter=st.floats(0, 1), answer=answers)
def test_every_decision_keeps_the_promises(
    task: AttemptState, cause: Cause, jitter: float, answer: Recovery | None
) -> None:
    decision = decide_retry(task, cause, now=NOW, jitter=jitter, answer=answer)

    is_poison = cause.is_crash and task.crash_count + 1 >= (task.max_crashes or 0)
    assert (isinstance(decision, Fail) and decision.code == "POISON_TASK") == is_poison
    if isinstance(decision, Fail):
        assert is_poison or decision.code == cause.code
        return
    # Started again, or cancelled only because of its workflow: every limit is kept, or a hook decided otherwise.
    assert isinstance(decision, Cancel) == (task.no_restart is not None)
    if isinstance(decision, Retry):
        assert decision.at >= NOW
        assert task.good_until is None or decision.at < task.good_until
    if answer is not None and answer.kind is RecoveryKind.RESCHEDULE:
        return
    assert task.policy is not None
    assert task.retry_count < task.policy.max_retries
    if answer is None or answer.kind is RecoveryKind.DEFAULT:
        assert {cause.code, cause.also_listed_as} & set(task.policy.auto_retry_for)
