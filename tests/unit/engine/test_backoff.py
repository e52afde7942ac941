"""Backoff while the database is unavailable."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.engine.service import Backoff, backoff_delay_ms
from horsies.errors import BrokerError, BrokerErrorCode, ConfigurationError, DatabaseUnreachable, ExitCode, is_transient
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.store.connection import StatementFailed

DEFAULT = WorkerResilienceConfig()
UNAVAILABLE = DatabaseUnreachable("no answer")


class Sleeps:
    """Records the delays instead of sleeping."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)


def backoff(sleeps: Sleeps, config: WorkerResilienceConfig = DEFAULT) -> Backoff:
    return Backoff(config, jitter=lambda: 0.5, sleep=sleeps.sleep)


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
def test_delays_double_up_to_the_cap(attempt: int, jitter: float, expected_ms: float) -> None:
    assert backoff_delay_ms(DEFAULT, attempt, jitter=jitter) == expected_ms


async def test_hurry_ends_the_delay_and_shortens_later_ones() -> None:
    hurry, later = asyncio.Event(), Sleeps()
    hurried = Backoff(WorkerResilienceConfig(db_retry_initial_ms=60_000, db_retry_max_ms=60_000), hurry=hurry)
    waiting = asyncio.create_task(hurried.wait(UNAVAILABLE))
    await asyncio.sleep(0)
    hurry.set()
    async with asyncio.timeout(5):
        await waiting
    await Backoff(DEFAULT, hurry=hurry, jitter=lambda: 1.0, sleep=later.sleep).wait(UNAVAILABLE)
    assert later.delays == [0.5]


@given(
    initial_ms=st.integers(100, 60_000),
    extra_ms=st.integers(400, 240_000),
    attempt=st.integers(0, 10_000),
    jitter=st.floats(0, 1),
)
def test_jitter_is_25_percent_and_never_exceeds_the_cap(
    initial_ms: int, extra_ms: int, attempt: int, jitter: float
) -> None:
    config = WorkerResilienceConfig(db_retry_initial_ms=initial_ms, db_retry_max_ms=initial_ms + extra_ms)
    without_jitter_ms = initial_ms * 2.0 ** min(attempt, 30)
    delay_ms = backoff_delay_ms(config, attempt, jitter=jitter)

    assert min(0.75 * without_jitter_ms, config.db_retry_max_ms) <= delay_ms <= config.db_retry_max_ms
    assert delay_ms <= 1.25 * without_jitter_ms


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (UNAVAILABLE, True),
        (DatabaseUnreachable("the server refused the password", retryable=False), True),
        (StatementFailed("lock timeout", sqlstate="55P03", retryable=True), True),
        (StatementFailed("no text may hold it", sqlstate="22P05", retryable=False), False),
        (BrokerError("busy", code=BrokerErrorCode.ENQUEUE_FAILED, retryable=True), True),
        (ConfigurationError("no horsies tables"), False),
        (RuntimeError("a bug"), False),
    ],
)
def test_only_transient_errors_are_retried(error: Exception, is_retried: bool) -> None:
    assert is_transient(error) == is_retried


async def test_delays_grow_until_a_reset() -> None:
    sleeps = Sleeps()
    waits = backoff(sleeps)
    for _ in range(3):
        await waits.wait(UNAVAILABLE)
    waits.reset()
    await waits.wait(UNAVAILABLE)

    assert sleeps.delays == [0.5, 1.0, 2.0, 0.5]


async def test_last_allowed_attempt_raises_its_error() -> None:
    sleeps = Sleeps()
    waits = backoff(sleeps, WorkerResilienceConfig(db_retry_max_attempts=2))
    await waits.wait(UNAVAILABLE)

    with pytest.raises(DatabaseUnreachable, match="gave up after 2 failed attempts") as raised:
        await waits.wait(UNAVAILABLE)
    assert (raised.value.exit_code, raised.value.__cause__) == (ExitCode.FAILED, UNAVAILABLE)
    assert sleeps.delays == [0.5]


async def test_permanent_errors_are_raised_without_delay() -> None:
    sleeps = Sleeps()

    with pytest.raises(RuntimeError):
        await backoff(sleeps).wait(RuntimeError("a bug"))
    assert sleeps.delays == []


async def test_outage_is_reported_at_its_start_and_end() -> None:
    changes: list[Exception | None] = []
    waits = Backoff(DEFAULT, on_change=changes.append, sleep=Sleeps().sleep)
    waits.reset()
    await waits.wait(UNAVAILABLE)
    await waits.wait(UNAVAILABLE)
    waits.reset()
    waits.reset()

    assert changes == [UNAVAILABLE, None]
