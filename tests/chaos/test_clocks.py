"""A worker whose clock is wrong by ten minutes behaves like any other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import send, worker_process

# Imported by every interpreter at its start; children are forked from the worker's.
SHIM = """
import datetime, itertools, os, time

import horsies.engine.pool.protocol  # before the change: msgspec accepts only the real class as a type

offsets = itertools.cycle(float(offset) for offset in os.environ["CLOCK_OFFSETS_S"].split(","))
real, real_time, real_time_ns = datetime.datetime, time.time, time.time_ns

class Meta(type):
    def __instancecheck__(cls, value):
        return isinstance(value, real)

class Shifted(real, metaclass=Meta):
    def __new__(cls, *parts, **named):
        return real(*parts, **named)

    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + datetime.timedelta(seconds=next(offsets))

    @classmethod
    def utcnow(cls):
        return real.utcnow() + datetime.timedelta(seconds=next(offsets))

Shifted.__name__ = Shifted.__qualname__ = "datetime"
datetime.datetime = Shifted
time.time = lambda: real_time() + next(offsets)
time.time_ns = lambda: real_time_ns() + int(next(offsets) * 1e9)
print("the clock is shifted", flush=True)
"""


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.mark.parametrize("offsets_s", ["600", "-600", "600,-600,0"], ids=["fast", "slow", "jumping"])
async def test_wrong_worker_clock_changes_nothing(
    ledger: Ledger, database_url: str, tmp_path: Path, offsets_s: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHIM)
    app = ledger_app(database_url)
    worker_with_wrong_clock = worker_process(
        database_url, "--processes", "2", in_new_interpreter=True, PYTHONPATH=str(tmp_path), CLOCK_OFFSETS_S=offsets_s
    )
    async with worker_with_wrong_clock as worker:
        assert "the clock is shifted" in worker.log_text  # and so are those of the children, which are forked
        clock = (await app.tasks["read_clock"].send_async(3)).unwrap()
        readings = (await clock.get_async(timeout_ms=15_000)).unwrap()
        assert any(abs(reading - time.time()) > 500 for reading in readings), "in the child"
        plain = await send(app, "work", 0.5)
        due = (await app.tasks["work"].schedule_async(1)).unwrap().task_id
        in_time = await send(app, "work", good_until=datetime.now(UTC) + timedelta(seconds=60))
        retried = await send(app, "return_error", "LISTED")
        bounded = await send(app, "work_briefly", 0.1)
        too_long = await send(app, "work_briefly", 10)
        sent = [clock.task_id, plain, due, in_time, retried, bounded, too_long]
        rows = await ledger.until_terminal(*sent, within_s=15)
        assert {rows[task_id]["status"] for task_id in (clock.task_id, plain, due, in_time, bounded)} == {"COMPLETED"}
        assert rows[too_long]["error_code"] == "TASK_TIMEOUT"
        assert (rows[retried]["error_code"], rows[retried]["retry_count"]) == ("LISTED", 2)
        waited = rows[due]["started_at"] - rows[due]["sent_at"]
        assert timedelta(seconds=1) <= waited < timedelta(seconds=3)
        first, *later = [attempt["started_at"] for attempt in await ledger.attempts(retried)]
        assert all(timedelta(seconds=1) <= gap for gap in (later[0] - first, later[1] - later[0]))
        assert not await ledger.fetch("SELECT FROM horsies_workers WHERE state <> 'running'")
        assert await ledger.violations(sent) == []
    await app.close_async()
