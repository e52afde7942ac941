"""Checks of the server and of the way to it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import humanize

from horsies.store.probe import is_heard, is_new_work_announced
from horsies_ops.doctor.findings import Finding, fail, ok, warn
from horsies_ops.reads.diagnosis import search_path
from horsies_ops.reads.status import database_status
from horsies_ops.reads.storage import storage

if TYPE_CHECKING:
    from horsies_ops.doctor.patient import Patient
    from horsies_ops.reads.status import ConnectionFacts, DatabaseStatus
    from horsies_ops.reads.storage import OpenTransaction, TableStorage

HEARD_WITHIN_S: Final = 5.0
LARGEST_OFFSET: Final = timedelta(seconds=2)
BUSY_CONNECTIONS, FULL_CONNECTIONS = 0.8, 0.95
LONG, TOO_LONG = timedelta(minutes=5), timedelta(hours=1)
DEAD_SHARE, DEAD_ROWS = 0.3, 10_000
FILLING_QUEUE, FULL_QUEUE = 0.2, 0.8


async def database(patient: Patient) -> Finding:
    return judge_database(await database_status(patient.reads.reading, embedded=patient.reads.is_embedded))


def judge_database(status: DatabaseStatus) -> Finding:
    detail = f"PostgreSQL {status.server_version} at {status.url}"
    if status.in_recovery:
        hint = "name the primary, or several hosts with target_session_attrs=read-write, in broker.database_url"
        return fail(f"{detail} is a standby and takes no writes", hint=hint)
    return ok(detail)


async def schema(patient: Patient) -> Finding:
    return judge_schema(await database_status(patient.reads.reading, embedded=patient.reads.is_embedded))


def judge_schema(status: DatabaseStatus) -> Finding:
    found = status.migrations
    if found is None:
        return fail("unknown", hint="horsies db status")
    detail = f"schema {status.schema or '(none)'}, migration {found.current} of {found.latest}"
    if found.current > found.latest:
        return fail(f"{detail}: newer than this horsies", hint="upgrade horsies on this machine")
    if not found.checksums_ok:
        return fail(f"{detail}: one was changed after it had been applied", hint="install the horsies that applied it")
    if found.pending:
        return fail(f"{detail}: {len(found.pending)} pending", hint="run: horsies db migrate")
    return ok(detail)


async def connections(patient: Patient) -> Finding:
    facts = (await database_status(patient.reads.reading, embedded=patient.reads.is_embedded)).connections
    return judge_connections(facts) if facts else ok("unknown")


def judge_connections(facts: ConnectionFacts) -> Finding:
    detail, share = f"{facts.used} of {facts.max} in use", facts.used / facts.max
    hint = "raise max_connections, put PgBouncer in front, or run fewer workers"
    if share >= FULL_CONNECTIONS:
        return fail(detail, hint=hint)
    return warn(detail, hint=hint) if share >= BUSY_CONNECTIONS else ok(detail)


async def listen(patient: Patient) -> Finding:
    if not await is_heard(patient.reads.reading, patient.reads.direct, within_s=HEARD_WITHIN_S):
        return fail(
            f"a notification did not come back within {HEARD_WITHIN_S:.0f} s",
            hint="LISTEN cannot pass a transaction pooler: set broker.session_database_url to the server itself",
        )
    return ok("notifications arrive")


async def announcing(patient: Patient) -> Finding:
    """The other half of `listen`, which needs our tables."""
    if not await is_new_work_announced(patient.reads.reading):
        hint = "enable the trigger horsies_tasks_announce; until then work waits for the poll"
        return fail("new work is not announced: the trigger is missing or disabled", hint=hint)
    return await listen(patient)


async def pooler(patient: Patient) -> Finding:
    broker = patient.settings.broker
    if not broker.pgbouncer_transaction_mode:
        return ok("none configured")
    path = await search_path(patient.reads.reading)
    return judge_pooler(has_session_url=broker.session_database_url is not None, schema=broker.schema, path=path)


def judge_pooler(*, has_session_url: bool, schema: str, path: str) -> Finding:
    if not has_session_url:
        return fail(
            "LISTEN cannot pass a transaction pooler", hint="set broker.session_database_url to the server itself"
        )
    if schema != "public" and schema not in [name.strip(' "') for name in path.split(",")]:
        hint = f"ALTER ROLE … SET search_path = {schema}, for the role in broker.database_url"
        return warn(f"sessions of the pooler do not look into the schema {schema}", hint=hint)
    return ok("PgBouncer in transaction mode, LISTEN past it")


async def clock(patient: Patient) -> Finding:
    asked_at, asked = datetime.now(UTC), time.monotonic()
    there = await patient.reads.clock()
    took = timedelta(seconds=time.monotonic() - asked)
    return judge_clock(there - (asked_at + took / 2), took)


def judge_clock(offset: timedelta, took: timedelta) -> Finding:
    """By how much this machine and the database differ; the way there and back makes it no more exact than `took`."""
    detail = f"{offset.total_seconds():+.1f} s from this machine's, asked in {took.total_seconds() * 1000:.0f} ms"
    if abs(offset) - took / 2 > LARGEST_OFFSET:
        hint = "recovery goes by the database's clock alone, but sent_at and good_until are this side's: use NTP"
        return warn(detail, hint=hint)
    return ok(detail)


async def long_transactions(patient: Patient) -> Finding:
    return judge_transaction((await storage(patient.reads.reading)).longest_transaction)


def judge_transaction(longest: OpenTransaction | None) -> Finding:
    if longest is None:
        return ok("none open")
    who = f"pid {longest.pid}" + (f" ({longest.application_name})" if longest.application_name else "")
    detail = f"the longest has been open for {_span(longest.age)}: {who}, {longest.state or 'unknown'}"
    hint = f"end it: SELECT pg_terminate_backend({longest.pid}); while it is open, dead rows pile up"
    if longest.age >= TOO_LONG:
        return fail(detail, hint=hint)
    return warn(detail, hint=hint) if longest.age >= LONG else ok(detail)


async def bloat(patient: Patient) -> Finding:
    return judge_bloat((await storage(patient.reads.reading)).tables)


def judge_bloat(tables: tuple[TableStorage, ...]) -> Finding:
    swollen = [each for each in tables if each.dead_share > DEAD_SHARE and each.dead_rows > DEAD_ROWS]
    if not swollen:
        size = humanize.naturalsize(sum(each.bytes for each in tables), binary=True)
        return ok(f"{size} in {len(tables)} tables")
    detail = ", ".join(f"{each.name} {each.dead_share:.0%} dead" for each in swollen)
    return warn(detail, hint=f"VACUUM {swollen[0].name}; is autovacuum on, and is a transaction open for long?")


async def notify_queue(patient: Patient) -> Finding:
    return judge_notify_queue((await storage(patient.reads.reading)).notify_queue)


def judge_notify_queue(usage: float) -> Finding:
    detail = f"{usage:.1%} full"
    hint = "a session that LISTENs has been in one transaction for long; see long_transactions"
    if usage >= FULL_QUEUE:
        return fail(detail, hint=hint)
    return warn(detail, hint=hint) if usage >= FILLING_QUEUE else ok(detail)


def _span(age: timedelta) -> str:
    return humanize.precisedelta(age, minimum_unit="seconds", format="%d")
