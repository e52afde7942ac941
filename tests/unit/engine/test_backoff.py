"""How long a worker waits for a database that is away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.engine.service import Backoff, backoff_delay_ms, is_transient
from horsies.errors import BrokerError, BrokerErrorCode, ConfigurationError, DatabaseUnreachable
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.store.connection import StatementFailed

DEFAULT = WorkerResilienceConfig()
AWAY = DatabaseUnreachable("no answer")


class Naps:
    """A clock that does not wait, and remembers for how long it should have."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.taken.append(seconds)


def backoff(naps: Naps, config: WorkerResilienceConfig = DEFAULT) -> Backoff:
    return Backoff(config, jitter=lambda: 0.5, sleep=naps.sleep)


@pytest.mark.parametrize(
    ("attempt", "jitter", "expected_ms"),
    [
        (0, 0.5, 500),
        (0, 0.0, 375),
        (0, 1.0, 625),
        (1, 0.5, 1_000),
        (5, 0.5, 16_000),
        (6, 0.5, 30_000),
        (6, 0.0, 24_000),
        (6, 1.0, 30_000),
        (100_000, 0.5, 30_000),
    ],
)
def test_pauses_double_up_to_the_cap_which_holds_after_jitter(attempt: int, jitter: float, expected_ms: float) -> None:
    assert backoff_delay_ms(DEFAULT, attempt, jitter=jitter) == expected_ms


@given(
    initial_ms=st.integers(100, 60_000),
    extra_ms=st.integers(400, 240_000),
    attempt=st.integers(0, 10_000),
    jitter=st.floats(0, 1),
)
def test_jitter_is_a_quarter_either_way_and_never_passes_the_cap(
    initial_ms: int, extra_ms: int, attempt: int, jitter: float
) -> None:
    config = WorkerResilienceConfig(db_retry_initial_ms=initial_ms, db_retry_max_ms=initial_ms + extra_ms)
    middle = initial_ms * 2.0 ** min(attempt, 30)
    found = backoff_delay_ms(config, attempt, jitter=jitter)

    assert min(0.75 * middle, config.db_retry_max_ms) <= found <= config.db_retry_max_ms
    assert found <= 1.25 * middle


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (AWAY, True),
        (DatabaseUnreachable("the server refused the password", retryable=False), True),
        (StatementFailed("lock timeout", sqlstate="55P03", retryable=True), True),
        (StatementFailed("no text may hold it", sqlstate="22P05", retryable=False), False),
        (BrokerError("busy", code=BrokerErrorCode.ENQUEUE_FAILED, retryable=True), True),
        (ConfigurationError("no horsies tables"), False),
        (RuntimeError("a mistake of ours"), False),
    ],
)
def test_only_what_may_pass_is_waited_for(error: Exception, passes: bool) -> None:
    assert is_transient(error) == passes


async def test_failures_in_a_row_wait_longer_until_a_good_iteration() -> None:
    naps = Naps()
    pauses = backoff(naps)
    for _ in range(3):
        await pauses.wait(AWAY)
    pauses.reset()
    await pauses.wait(AWAY)

    assert naps.taken == [0.5, 1.0, 2.0, 0.5]


async def test_the_last_attempt_allowed_ends_with_its_error() -> None:
    naps = Naps()
    pauses = backoff(naps, WorkerResilienceConfig(db_retry_max_attempts=2))
    await pauses.wait(AWAY)

    with pytest.raises(DatabaseUnreachable):
        await pauses.wait(AWAY)
    assert naps.taken == [0.5]


async def test_what_will_not_pass_is_raised_at_once() -> None:
    naps = Naps()

    with pytest.raises(RuntimeError):
        await backoff(naps).wait(RuntimeError("a mistake of ours"))
    assert naps.taken == []


async def test_an_outage_is_told_once_when_it_begins_and_once_when_it_is_over() -> None:
    heard: list[Exception | None] = []
    pauses = Backoff(DEFAULT, on_change=heard.append, sleep=Naps().sleep)
    pauses.reset()
    await pauses.wait(AWAY)
    await pauses.wait(AWAY)
    pauses.reset()
    pauses.reset()

    assert heard == [AWAY, None]
