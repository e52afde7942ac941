"""Checks of the server and of the way to it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import humanize

from horsies.model.recovery.fleet import disagreements
from horsies.model.retention import Category, Windows
from horsies.model.task import short_form
from horsies.store.listen import is_heard, is_new_work_announced
from horsies.store.recovery import RecoveryStore
from horsies_ops.doctor.findings import Finding, fail, ok, skip, warn
from horsies_ops.reads.server import database_status, oldest, orphans, outbox, search_path, storage
from horsies_ops.reads.stale import stale_now

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horsies.model.recovery.fleet import Fleet, FleetMember
    from horsies_ops.doctor.findings import Patient
    from horsies_ops.reads.server import ConnectionFacts, DatabaseStatus, OpenTransaction, Outbox, TableStorage


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


# Checks of the workers and of the work in their hands.


async def _fleet(patient: Patient) -> Fleet:
    return await RecoveryStore(patient.reads.reading).fleet()


async def workers(patient: Patient) -> Finding:
    return judge_workers(await _fleet(patient))


def judge_workers(found: Fleet) -> Finding:
    silent = [each for each in found.live if each.is_silent(found.now)]
    live = [each for each in found.live if each not in silent]
    gone = sum(each.given_up_at <= found.now for each in found.members)
    parts = [
        f"{len(live)} live",
        *map(_since, silent),
        *([f"{gone} silent for longer than their threshold"] * bool(gone)),
    ]
    detail = ", ".join(parts)
    if not live:
        return warn(detail, hint="start one: horsies worker")
    if gone:
        return warn(detail, hint="horsies workers list --stale; a worker that lives will mark them lost")
    if silent:
        return warn(detail, hint="horsies workers ping asks them; one that is dead is declared lost by those that live")
    degraded = [each for each in live if each.health.get("listener") == "degraded"]
    if degraded:
        hint = "their log says why; until then they find work by the poll"
        return warn(f"{detail}, {len(degraded)} of them hear no notifications", hint=hint)
    return ok(detail)


def _since(member: FleetMember) -> str:
    return f"{short_form(member.worker_id)} silent since {member.last_heartbeat_at:%H:%M:%S}Z"


async def fleet_config(patient: Patient) -> Finding:
    return judge_fleet_config(await _fleet(patient))


def judge_fleet_config(found: Fleet) -> Finding:
    if not found.live:
        return skip("no live worker")
    differing = disagreements(found.live)
    if not differing:
        return ok("all live workers judge alike")
    detail = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in differing.items())
    hint = "give all workers the same [recovery]; until then the most patient value counts"
    return warn(f"live workers differ in {detail}", hint=hint)


async def stale(patient: Patient) -> Finding:
    reading = patient.reads.reading
    found = await stale_now(reading, local=patient.settings.recovery)
    fleet = await _fleet(patient)
    return judge_stale(fleet, claimed=found.claimed, running=found.running, orphans=await orphans(reading))


def judge_stale(found: Fleet, *, claimed: int, running: int, orphans: int) -> Finding:
    """Stale work is to be looked at; where nobody is going to recover it, it is a failure."""
    if not (claimed or running or orphans):
        return ok("no work without a sign of life")
    detail = f"{claimed} claimed and {running} running tasks are silent, {orphans} have an owner that is gone"
    shown = "horsies sweep --dry-run shows what would become of them"
    if why := _why_nobody_recovers(found, claimed=claimed, running=running):
        return fail(f"{detail}, and {why}", hint=f"{shown}, horsies sweep does it")
    return warn(detail, hint=f"{shown}; a live worker does it by itself")


def _why_nobody_recovers(found: Fleet, *, claimed: int, running: int) -> str | None:
    live = [each.config for each in found.live if not each.is_silent(found.now)]
    if not live:
        return "no worker lives to recover them"
    if claimed and not any(each.auto_requeue_stale_claimed for each in live):
        return "no worker recovers them by itself: auto_requeue_stale_claimed is off"
    if running and not any(each.auto_fail_stale_running for each in live):
        return "no worker recovers them by itself: auto_fail_stale_running is off"
    return None


async def amnesty(patient: Patient) -> Finding:
    return judge_amnesty(await _fleet(patient))


def judge_amnesty(found: Fleet) -> Finding:
    if not found.live:
        return skip("no live worker")
    ends = [until for each in found.live if (until := each.instant("amnesty_until")) is not None and until > found.now]
    if len(ends) < len(found.live):
        return ok(f"{len(found.live) - len(ends)} of {len(found.live)} live workers have listened long enough to judge")
    hint = "nothing to do; horsies sweep --force goes by plain ages"
    return warn(f"no live worker has listened long enough to judge; the first will at {min(ends):%H:%M:%S}Z", hint=hint)


async def disabled_operations(patient: Patient) -> Finding:
    return judge_disabled(await _fleet(patient))


def judge_disabled(found: Fleet) -> Finding:
    names = sorted({name for each in found.live for name in _disabled(each)})
    if not names:
        return ok("none")
    return fail(f"keep failing: {', '.join(names)}", hint="horsies events --kind operation_disabled shows the errors")


def _disabled(member: FleetMember) -> Iterator[str]:
    named = member.health.get("disabled_operations")
    yield from map(str, named) if isinstance(named, list) else ()  # pyright: ignore[reportUnknownArgumentType]


# Checks of what should have been moved on or cleaned away by now.

LONGEST_WAIT: Final = timedelta(minutes=5)


async def waiting_outcomes(patient: Patient) -> Finding:
    return judge_outbox(await outbox(patient.reads.reading))


def judge_outbox(found: Outbox) -> Finding:
    detail = f"{found.waiting} waiting, {found.quarantined} quarantined"
    if found.quarantined:
        hint = "horsies events --kind outbox_quarantined shows why; they are tried again every hour"
        return fail(detail, hint=hint)
    if found.oldest is not None and found.oldest > LONGEST_WAIT:
        hint = "workflows are not advanced: is a worker running that knows them?"
        return warn(f"{detail}, the oldest for {humanize.naturaldelta(found.oldest)}", hint=hint)
    return ok(detail)


async def retention(patient: Patient) -> Finding:
    settings = patient.settings
    windows = Windows.of(settings.recovery, settings.retention)
    # Two passes, for one may have ended with its time over.
    slack = timedelta(seconds=2 * settings.retention.interval_s)
    return judge_retention(await oldest(patient.reads.reading), windows, slack)


def judge_retention(ages: Mapping[str, timedelta], windows: Windows, slack: timedelta) -> Finding:
    overdue = {
        category: late
        for category, window in windows
        if window is not None and (late := ages.get(category, timedelta()) - window) > slack
    }
    if not overdue:
        return ok(_kept(windows))
    detail = ", ".join(f"{_words(category)} by {humanize.naturaldelta(late)}" for category, late in overdue.items())
    return warn(f"past their window: {detail}", hint="horsies cleanup; a live worker does it every hour")


def _kept(windows: Windows) -> str:
    endless = [_words(category) for category, window in windows if window is None]
    return "nothing is past its window" + (f"; kept for ever: {', '.join(endless)}" if endless else "")


def _words(category: Category) -> str:
    return category.replace("_", " ")
