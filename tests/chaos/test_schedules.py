"""Schedules under faults: every slot happens exactly as often as its policy says."""

# ruff: noqa: ASYNC110  # database state has to be polled

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from horsies import CronSchedule, DailySchedule, HourlySchedule, IntervalSchedule, SchedulePattern, TaskSchedule
from horsies.client.schedules import encode_schedules
from horsies.model.schedule.decide import DueSchedule, FireSlot, SchedulePolicy, decide_slots
from horsies.model.settings.patterns import DstGap, load_zone
from horsies.scheduler.firing import fire_due
from horsies.scheduler.service import Scheduler, ScheduleSet
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from tests.chaos.test_clocks import SHIM
from tests.support.cli import Executable
from tests.support.faults import CrashingDatabase, Proxy, SimulatedCrash
from tests.support.ledger import Ledger
from tests.support.schedules import EVERY_HOUR, hourly, make_due, schedule_app, state_of, sync, sync_app
from tests.support.store import Connection
from tests.support.workers import worker_process

EVERY_SECOND = IntervalSchedule(seconds=1, anchor=datetime(2026, 1, 1, tzinfo=UTC))
SLOTS = """
SELECT schedule_name, slot_at, outcome, (SELECT count(*) FROM horsies_tasks WHERE id = task_id) AS tasks
  FROM horsies_schedule_runs
 ORDER BY schedule_name, slot_at
"""


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


def spec(url: str) -> ConnectionSpec:
    return ConnectionSpec(url=url, masked_url=url)


async def slots(connection: Connection) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await connection.fetch(SLOTS)]


def assert_no_gap(rows: list[tuple[Any, ...]], step: timedelta) -> None:
    """Each slot fired once, and none is missing between the first and the last."""
    times = [slot for _, slot, outcome, tasks in rows if outcome == "fired" and tasks == 1]
    assert len(times) == len(rows) == len(set(times))
    assert all(later - earlier == step for earlier, later in pairwise(times)), times


# Crashes between statements


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["tasks", "workflow", "replace"])
async def test_crash_at_any_statement_loses_and_doubles_nothing(
    database_url: str, connection: Connection, kind: str, is_after: bool
) -> None:
    app = schedule_app(database_url)
    spec_of_run = app.workflow("report", [app.tasks["add"].node()(a=1, b=2)], definition_key="report.v1")
    call: dict[str, Any] = {"workflow": spec_of_run} if kind == "workflow" else {"task_name": "add"}
    policy: dict[str, Any] = {"overlap": "replace"} if kind == "replace" else {"missed": "all"}
    names = ("a", "b")
    app.add_schedules(TaskSchedule(name=name, pattern=EVERY_HOUR, **call, **policy) for name in names)

    async def fire(crash_at: int | None) -> tuple[list[str], Any]:
        for table in ("schedule_runs", "schedule_state", "tasks", "workflows", "events"):
            await connection.execute(f"DELETE FROM horsies_{table}")
        async with CrashingDatabase(spec(database_url), crash_at, after_statement=is_after) as victim:
            await sync_app(survivor, app)
            for name in names:
                await make_due(connection, 3, name)
            try:
                await fire_due(victim)
            except SimulatedCrash:
                await fire_due(survivor)
            runs = await connection.fetch(
                "SELECT schedule_name, outcome FROM horsies_schedule_runs ORDER BY 1, slot_at"
            )
            counts = [
                await connection.fetchval(f"SELECT count(*) FROM horsies_{table}") for table in ("tasks", "workflows")
            ]
            following = await connection.fetch("SELECT next_run_at > now() FROM horsies_schedule_state")
            return victim.statements, ([tuple(row) for row in runs], counts, [row[0] for row in following])

    async with Database(spec(database_url)) as survivor:
        statements, undisturbed = await fire(None)
        assert undisturbed[2] == [True, True]
        for number, name in enumerate(statements):
            assert (await fire(number))[1] == undisturbed, name
    await app.close_async()


# Many participants


@asynccontextmanager
async def participants(url: str, count: int, schedules: ScheduleSet) -> AsyncGenerator[None]:
    """Run schedulers, each with its own connections; without a listener, so they check at each interval."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        databases = [await stack.enter_async_context(Database(spec(url))) for _ in range(count)]
        schedulers = [Scheduler(each, schedules, uuid4(), is_notified=lambda: False) for each in databases]
        running = [asyncio.create_task(scheduler.run(stop)) for scheduler in schedulers]
        yield
        stop.set()
        await asyncio.gather(*running)


def second_by_second(url: str, count: int) -> ScheduleSet:
    app = schedule_app(url, *(hourly(f"s{n}", pattern=EVERY_SECOND, missed="all") for n in range(count)))
    return encode_schedules(app, app.get_schedules())


async def test_eight_participants_fire_each_slot_once(database_url: str, connection: Connection) -> None:
    async with participants(database_url, 8, second_by_second(database_url, 5)):
        await asyncio.sleep(3.5)
    found = await slots(connection)
    for n in range(5):
        mine = [row for row in found if row[0] == f"s{n}"]
        assert len(mine) >= 3
        assert_no_gap(mine, timedelta(seconds=1))
    lags = await connection.fetch("SELECT extract(epoch FROM fired_at - slot_at)::float8 FROM horsies_schedule_runs")
    assert max(row[0] for row in lags) < 1


@pytest.mark.parametrize("missed", ["latest", "all"])
async def test_database_down_across_a_hundred_slots(database_url: str, connection: Connection, missed: str) -> None:
    app = schedule_app(database_url, hourly(missed=missed))
    async with Proxy(database_url).running() as proxy:
        schedules = encode_schedules(app, app.get_schedules())
        async with participants(proxy.url, 2, schedules):
            await until(lambda: connection.fetchval("SELECT count(*) FROM horsies_schedule_state"))
            proxy.cut()
            await make_due(connection, 100)
            await asyncio.sleep(1.2)  # longer than a check interval: both notice
            proxy.restore()
            await until(
                lambda: connection.fetchval("SELECT count(*) FROM horsies_schedule_state WHERE next_run_at > now()")
            )
    found = await slots(connection)
    fired = 1 if missed == "latest" else 100
    assert Counter(row[2] for row in found) == Counter(skipped=100 - fired, fired=fired)
    assert sum(row[3] for row in found) == fired


async def until(condition: Any, *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.02)


# Processes


SHOP = """
from datetime import UTC, datetime

from horsies import AppConfig, Horsies, IntervalSchedule, TaskError, TaskResult

app = Horsies(AppConfig(name="shop"))


@app.scheduled(IntervalSchedule(seconds=1, anchor=datetime(2026, 1, 1, tzinfo=UTC)), name="tick", missed="all")
@app.task("tick")
def tick() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)
"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Executable:
    (tmp_path / "shop.py").write_text(SHOP)
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
async def test_killed_or_suspended_process_delays_no_slot(
    shop: Executable, connection: Connection, number: signal.Signals
) -> None:
    with shop.start("scheduler", "shop.py") as victim, shop.start("scheduler", "shop.py") as other:
        for each in (victim, other):
            await asyncio.to_thread(each.wait_for_output, "scheduler started")
        await until(lambda: connection.fetchval("SELECT count(*) > 1 FROM horsies_schedule_runs"))
        victim.popen.send_signal(number)
        before = await connection.fetchval("SELECT count(*) FROM horsies_schedule_runs")
        await until(
            lambda: connection.fetchval("SELECT count(*) > $1 + 2 FROM horsies_schedule_runs", before), within_s=6
        )
        if number == signal.SIGSTOP:
            victim.popen.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.2)
        other.stop()
    assert_no_gap(await slots(connection), timedelta(seconds=1))


async def test_wrong_host_clock_changes_nothing(
    shop: Executable, connection: Connection, tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHIM)
    config = {"name": "shop", "schedule": {"schedules": [tick_entry()]}}
    async with worker_process(
        database_url,
        "--processes",
        "1",
        config=config,
        in_new_interpreter=True,
        PYTHONPATH=str(tmp_path),
        CLOCK_OFFSETS_S="3600,-3600",
    ):
        await until(lambda: connection.fetchval("SELECT count(*) > 2 FROM horsies_schedule_runs"))
    assert_no_gap(await slots(connection), timedelta(seconds=1))
    lag = await connection.fetchval(
        "SELECT max(abs(extract(epoch FROM fired_at - slot_at))) FROM horsies_schedule_runs"
    )
    assert lag < 1


def tick_entry() -> dict[str, Any]:
    pattern = {"type": "interval", "seconds": 1, "anchor": "2026-01-01T00:00:00Z"}
    return {"name": "tick", "task_name": "work", "pattern": pattern, "missed": "all"}


async def test_workers_killed_in_turn_run_each_slot_once(database_url: str) -> None:
    config = {"name": "shop", "schedule": {"schedules": [tick_entry()]}}
    async with Ledger.open(database_url) as ledger, AsyncExitStack() as stack:
        start = [worker_process(database_url, "--processes", "1", config=config) for _ in range(3)]
        workers = [await stack.enter_async_context(each) for each in start]
        for worker in workers[:2]:
            fired = len(await ledger.fetch(SLOTS))
            await ledger.until(lambda fired=fired: _has_more(ledger, fired + 1))
            worker.signal(signal.SIGKILL)
        fired = len(await ledger.fetch(SLOTS))
        await ledger.until(lambda: _has_more(ledger, fired + 2))
        rows = [tuple(row.values()) for row in await ledger.fetch(SLOTS)]
        assert_no_gap(rows, timedelta(seconds=1))
        starts = Counter(entry.task_id for entry in await ledger.starts())
        assert set(starts.values()) <= {1}


async def _has_more(ledger: Ledger, count: int) -> bool:
    return len(await ledger.fetch(SLOTS)) > count


# Old and new code


async def test_old_and_new_code_alternate_without_effect(
    database: Database, database_url: str, connection: Connection
) -> None:
    old, new = hourly(missed="all", kwargs={"a": 1}), hourly(missed="all", kwargs={"a": 2})
    await sync(database, database_url, old)
    await sync(database, database_url, new)
    await make_due(connection, 60)
    for n in range(20):
        await sync(database, database_url, old if n % 2 else new)
        await fire_due(database, limit=1)
    assert (await state_of(connection))["revision"] == 2
    assert_no_gap(await slots(connection), timedelta(hours=1))
    assert await connection.fetchval("SELECT count(DISTINCT kwargs) FROM horsies_tasks") == 1


# Daylight saving time


def fired_slots(pattern: SchedulePattern, zone: str, day: datetime, gap: DstGap) -> list[str]:
    """Tick every ten minutes through a local day, as a participant does, and return the local times that fired."""
    policy = SchedulePolicy(pattern=pattern, timezone=zone, dst_gap=gap, missed="all")
    midnight = day.replace(tzinfo=load_zone(zone))
    now, end = midnight.astimezone(UTC), (midnight + timedelta(days=1)).astimezone(UTC)
    following, last = policy.next_slot(now - timedelta(microseconds=1)), None
    fired: list[datetime] = []
    while now <= end and following is not None:
        plan = decide_slots(DueSchedule(policy=policy, first_slot=following, last_fired_slot=last), now)
        fired += [decision.slot for decision in plan.decisions if isinstance(decision, FireSlot)]
        following = plan.next_slot
        now += timedelta(minutes=10)
    return [f"{slot.astimezone(load_zone(zone)):%H:%M}" for slot in fired if slot < end]


def local_day(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day)  # noqa: DTZ001  # a local date, the same in every zone


FORWARD = {
    "Europe/Vienna": (local_day(2026, 3, 29), time(2, 30), "03:00", 23),
    "America/New_York": (local_day(2026, 3, 8), time(2, 30), "03:00", 23),
    "Australia/Lord_Howe": (local_day(2026, 10, 4), time(2, 15), "02:30", 23),
    "Africa/Casablanca": (local_day(2026, 3, 22), time(2, 30), "03:00", 23),
}
BACK = {
    "Europe/Vienna": (local_day(2026, 10, 25), time(2, 30), 25),
    "America/New_York": (local_day(2026, 11, 1), time(1, 30), 25),
    "Australia/Lord_Howe": (local_day(2026, 4, 5), time(1, 45), 25),
    "Africa/Casablanca": (local_day(2026, 2, 15), time(2, 30), 25),
}


@pytest.mark.parametrize("zone", FORWARD)
def test_day_with_a_gap(zone: str) -> None:
    day, at, end_of_gap, hours = FORWARD[zone]
    cron = CronSchedule.parse(f"{at.minute} {at.hour} * * *")
    for pattern in (DailySchedule(time=at), cron):
        assert fired_slots(pattern, zone, day, "skip") == []
        assert fired_slots(pattern, zone, day, "shift") == [end_of_gap]
    assert len(fired_slots(HourlySchedule(minute=at.minute), zone, day, "skip")) == hours


@pytest.mark.parametrize("zone", BACK)
def test_day_with_a_doubled_time(zone: str) -> None:
    day, at, hours = BACK[zone]
    assert fired_slots(DailySchedule(time=at), zone, day, "skip") == [f"{at:%H:%M}"]
    assert len(fired_slots(HourlySchedule(minute=at.minute), zone, day, "skip")) == hours
    assert len(fired_slots(CronSchedule.parse(f"{at.minute} * * * *"), zone, day, "skip")) == hours
