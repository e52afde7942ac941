"""Checks of the server and of the way to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import humanize

from horsies.model.recovery.fleet import Fleet, FleetMember, mismatched_settings
from horsies.model.retention import RetentionCategory, RetentionWindows
from horsies.model.task import short_form
from horsies.store.listen import is_notify_delivered, is_notify_trigger_enabled
from horsies.store.recovery import RecoveryStore
from horsies_ops.doctor.findings import Finding, fail, ok, skip, warn
from horsies_ops.reads.server import (
    ConnectionUsage,
    DatabaseStatus,
    OpenTransaction,
    OutboxStatus,
    TableStorage,
    count_orphans,
    database_status,
    default_search_path,
    oldest_by_category,
    outbox_status,
    storage,
)
from horsies_ops.reads.stale import count_stale

if TYPE_CHECKING:
    from horsies_ops.doctor.findings import CheckTarget


NOTIFY_TIMEOUT_S: Final = 5.0
LARGEST_OFFSET: Final = timedelta(seconds=2)
BUSY_CONNECTIONS, FULL_CONNECTIONS = 0.8, 0.95
TRANSACTION_WARN_AGE, TRANSACTION_FAIL_AGE = timedelta(minutes=5), timedelta(hours=1)
DEAD_SHARE, DEAD_ROWS = 0.3, 10_000
NOTIFY_QUEUE_WARN_SHARE, NOTIFY_QUEUE_FAIL_SHARE = 0.2, 0.8


async def check_database(target: CheckTarget) -> Finding:
    return database_finding(await database_status(target.reads.reader, embedded=target.reads.is_embedded))


def database_finding(status: DatabaseStatus) -> Finding:
    detail = f"PostgreSQL {status.server_version} at {status.url}"
    if status.in_recovery:
        hint = "name the primary, or several hosts with target_session_attrs=read-write, in broker.database_url"
        return fail(f"{detail} is a standby and takes no writes", hint=hint)
    return ok(detail)


async def check_schema(target: CheckTarget) -> Finding:
    return schema_finding(await database_status(target.reads.reader, embedded=target.reads.is_embedded))


def schema_finding(status: DatabaseStatus) -> Finding:
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


async def check_connections(target: CheckTarget) -> Finding:
    facts = (await database_status(target.reads.reader, embedded=target.reads.is_embedded)).connections
    return connections_finding(facts) if facts else ok("unknown")


def connections_finding(facts: ConnectionUsage) -> Finding:
    detail, share = f"{facts.used} of {facts.max} in use", facts.used / facts.max
    hint = "raise max_connections, put PgBouncer in front, or run fewer workers"
    if share >= FULL_CONNECTIONS:
        return fail(detail, hint=hint)
    return warn(detail, hint=hint) if share >= BUSY_CONNECTIONS else ok(detail)


async def check_listen(target: CheckTarget) -> Finding:
    if not await is_notify_delivered(target.reads.reader, target.reads.direct_spec, within_s=NOTIFY_TIMEOUT_S):
        return fail(
            f"a notification did not come back within {NOTIFY_TIMEOUT_S:.0f} s",
            hint="LISTEN cannot pass a transaction pooler: set broker.session_database_url to the server itself",
        )
    return ok("notifications arrive")


async def check_notifications(target: CheckTarget) -> Finding:
    """The other half of `listen`, which needs our tables."""
    if not await is_notify_trigger_enabled(target.reads.reader):
        hint = "enable the trigger horsies_tasks_announce; until then work waits for the poll"
        return fail("new work is not announced: the trigger is missing or disabled", hint=hint)
    return await check_listen(target)


async def check_pooler(target: CheckTarget) -> Finding:
    broker = target.settings.broker
    if not broker.pgbouncer_transaction_mode:
        return ok("none configured")
    path = await default_search_path(target.reads.reader)
    return pooler_finding(has_session_url=broker.session_database_url is not None, schema=broker.schema, path=path)


def pooler_finding(*, has_session_url: bool, schema: str, path: str) -> Finding:
    if not has_session_url:
        return fail(
            "LISTEN cannot pass a transaction pooler", hint="set broker.session_database_url to the server itself"
        )
    if schema != "public" and schema not in [name.strip(' "') for name in path.split(",")]:
        hint = f"ALTER ROLE … SET search_path = {schema}, for the role in broker.database_url"
        return warn(f"sessions of the pooler do not look into the schema {schema}", hint=hint)
    return ok("PgBouncer in transaction mode, LISTEN past it")


async def check_clock(target: CheckTarget) -> Finding:
    asked_at, asked = datetime.now(UTC), time.monotonic()
    there = await target.reads.database_time()
    took = timedelta(seconds=time.monotonic() - asked)
    return clock_finding(there - (asked_at + took / 2), took)


def clock_finding(offset: timedelta, took: timedelta) -> Finding:
    """By how much this machine and the database differ; the way there and back makes it no more exact than `took`."""
    detail = f"{offset.total_seconds():+.1f} s from this machine's, asked in {took.total_seconds() * 1000:.0f} ms"
    if abs(offset) - took / 2 > LARGEST_OFFSET:
        hint = "recovery goes by the database's clock alone, but sent_at and good_until are this side's: use NTP"
        return warn(detail, hint=hint)
    return ok(detail)


async def check_transactions(target: CheckTarget) -> Finding:
    return transaction_finding((await storage(target.reads.reader)).longest_transaction)


def transaction_finding(longest: OpenTransaction | None) -> Finding:
    if longest is None:
        return ok("none open")
    who = f"pid {longest.pid}" + (f" ({longest.application_name})" if longest.application_name else "")
    detail = f"the longest has been open for {_span(longest.age)}: {who}, {longest.state or 'unknown'}"
    hint = f"end it: SELECT pg_terminate_backend({longest.pid}); while it is open, dead rows pile up"
    if longest.age >= TRANSACTION_FAIL_AGE:
        return fail(detail, hint=hint)
    return warn(detail, hint=hint) if longest.age >= TRANSACTION_WARN_AGE else ok(detail)


async def check_bloat(target: CheckTarget) -> Finding:
    return bloat_finding((await storage(target.reads.reader)).tables)


def bloat_finding(tables: tuple[TableStorage, ...]) -> Finding:
    swollen = [each for each in tables if each.dead_share > DEAD_SHARE and each.dead_rows > DEAD_ROWS]
    if not swollen:
        size = humanize.naturalsize(sum(each.bytes for each in tables), binary=True)
        return ok(f"{size} in {len(tables)} tables")
    detail = ", ".join(f"{each.name} {each.dead_share:.0%} dead" for each in swollen)
    return warn(detail, hint=f"VACUUM {swollen[0].name}; is autovacuum on, and is a transaction open for long?")


async def check_notify_queue(target: CheckTarget) -> Finding:
    return notify_queue_finding((await storage(target.reads.reader)).notify_queue_usage)


def notify_queue_finding(usage: float) -> Finding:
    detail = f"{usage:.1%} full"
    hint = "a session that LISTENs has been in one transaction for long; see long_transactions"
    if usage >= NOTIFY_QUEUE_FAIL_SHARE:
        return fail(detail, hint=hint)
    return warn(detail, hint=hint) if usage >= NOTIFY_QUEUE_WARN_SHARE else ok(detail)


def _span(age: timedelta) -> str:
    return humanize.precisedelta(age, minimum_unit="seconds", format="%d")


# Checks of the workers and of the work in their hands.


async def _fleet(target: CheckTarget) -> Fleet:
    return await RecoveryStore(target.reads.reader).fleet()


async def check_workers(target: CheckTarget) -> Finding:
    return workers_finding(await _fleet(target))


def workers_finding(found: Fleet) -> Finding:
    silent = [each for each in found.live if each.is_silent(found.now)]
    live = [each for each in found.live if each not in silent]
    gone = sum(each.stale_at <= found.now for each in found.members)
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


async def check_fleet_config(target: CheckTarget) -> Finding:
    return fleet_config_finding(await _fleet(target))


def fleet_config_finding(found: Fleet) -> Finding:
    if not found.live:
        return skip("no live worker")
    differing = mismatched_settings(found.live)
    if not differing:
        return ok("all live workers judge alike")
    detail = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in differing.items())
    hint = "give all workers the same [recovery]; until then the most patient value counts"
    return warn(f"live workers differ in {detail}", hint=hint)


async def check_stale(target: CheckTarget) -> Finding:
    reading = target.reads.reader
    found = await count_stale(reading, local_config=target.settings.recovery)
    fleet = await _fleet(target)
    return stale_finding(fleet, claimed=found.claimed, running=found.running, orphans=await count_orphans(reading))


def stale_finding(found: Fleet, *, claimed: int, running: int, orphans: int) -> Finding:
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


async def check_outage_grace(target: CheckTarget) -> Finding:
    return outage_grace_finding(await _fleet(target))


def outage_grace_finding(found: Fleet) -> Finding:
    if not found.live:
        return skip("no live worker")
    ends = [
        until
        for each in found.live
        if (until := each.health_instant("outage_grace_until")) is not None and until > found.now
    ]
    if len(ends) < len(found.live):
        return ok(f"{len(found.live) - len(ends)} of {len(found.live)} live workers have listened long enough to judge")
    hint = "nothing to do; horsies sweep --force goes by plain ages"
    return warn(f"no live worker has listened long enough to judge; the first will at {min(ends):%H:%M:%S}Z", hint=hint)


async def check_disabled_operations(target: CheckTarget) -> Finding:
    return disabled_operations_finding(await _fleet(target))


def disabled_operations_finding(found: Fleet) -> Finding:
    names = sorted({name for each in found.live for name in _disabled(each)})
    if not names:
        return ok("none")
    return fail(f"keep failing: {', '.join(names)}", hint="horsies events --kind operation_disabled shows the errors")


def _disabled(member: FleetMember) -> Iterator[str]:
    named = member.health.get("disabled_operations")
    yield from map(str, named) if isinstance(named, list) else ()  # pyright: ignore[reportUnknownArgumentType]


# Checks of what should have been moved on or cleaned away by now.

OUTBOX_WARN_AGE: Final = timedelta(minutes=5)


async def check_outbox(target: CheckTarget) -> Finding:
    return outbox_finding(await outbox_status(target.reads.reader))


def outbox_finding(found: OutboxStatus) -> Finding:
    detail = f"{found.waiting} waiting, {found.quarantined} quarantined"
    if found.quarantined:
        hint = "horsies events --kind outbox_quarantined shows why; they are tried again every hour"
        return fail(detail, hint=hint)
    if found.oldest is not None and found.oldest > OUTBOX_WARN_AGE:
        hint = "workflows are not advanced: is a worker running that knows them?"
        return warn(f"{detail}, the oldest for {humanize.naturaldelta(found.oldest)}", hint=hint)
    return ok(detail)


async def check_retention(target: CheckTarget) -> Finding:
    settings = target.settings
    windows = RetentionWindows.of(settings.recovery, settings.retention)
    # Two passes, for one may have ended with its time over.
    slack = timedelta(seconds=2 * settings.retention.interval_s)
    return retention_finding(await oldest_by_category(target.reads.reader), windows, slack)


def retention_finding(ages: Mapping[str, timedelta], windows: RetentionWindows, slack: timedelta) -> Finding:
    overdue = {
        category: late
        for category, window in windows
        if window is not None and (late := ages.get(category, timedelta()) - window) > slack
    }
    if not overdue:
        return ok(_kept(windows))
    detail = ", ".join(f"{_words(category)} by {humanize.naturaldelta(late)}" for category, late in overdue.items())
    return warn(f"past their window: {detail}", hint="horsies cleanup; a live worker does it every hour")


def _kept(windows: RetentionWindows) -> str:
    endless = [_words(category) for category, window in windows if window is None]
    return "nothing is past its window" + (f"; kept for ever: {', '.join(endless)}" if endless else "")


def _words(category: RetentionCategory) -> str:
    return category.replace("_", " ")
