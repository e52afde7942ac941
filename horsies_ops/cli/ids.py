"""Which task, run or worker is meant by the eight digits that people copy from a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.errors import ErrorCode, NotFound, UsageError
from horsies.model.text import sanitize_text
from horsies_ops.reads.filters import NEWEST_LOOKED_AT, ShortIdMatch, is_short_id

if TYPE_CHECKING:
    from horsies_ops.ops import Ops


async def resolve_task_id(ops: Ops, named: str) -> UUID:
    """The id itself, or that of the only task whose short form it is; what fits several tasks is refused."""
    if not is_short_id(named):
        return UUID(named)
    return _single_match("task", named, await ops.tasks_by_short_id(named), shown_by="horsies task list --full")


async def resolve_run_id(ops: Ops, named: str) -> UUID:
    """The same for runs of workflows."""
    if not is_short_id(named):
        return UUID(named)
    return _single_match("run", named, await ops.runs_by_short_id(named), shown_by="horsies workflow list")


async def resolve_worker_id(ops: Ops, named: str) -> UUID:
    """The same for workers; one that has stopped is known by its whole id only."""
    if not is_short_id(named):
        return UUID(named)
    threshold = timedelta(milliseconds=ops.settings.recovery.worker_stale_threshold_ms)
    found = {
        each.worker_id: f"{each.state}  {sanitize_text(each.hostname, limit=80)}:{each.pid}"
        for each in await ops.list_active_workers(threshold)
        if each.worker_id.hex.endswith(named.lower())
    }
    if not found:
        raise NotFound(
            f"no worker that has not stopped ends in {named}",
            hint="give the whole id: horsies workers list --full shows it",
        )
    return _require_single("workers", named, found)


def _single_match(what: str, named: str, ending: Iterable[ShortIdMatch], *, shown_by: str) -> UUID:
    found = {each.id: f"{each.status}  {sanitize_text(each.name, limit=80)}" for each in ending}
    if not found:
        raise NotFound(
            f"no {what} that has not ended, and none of the newest {NEWEST_LOOKED_AT:,}, ends in {named}",
            hint=f"give the whole id: {shown_by} shows it",
        )
    return _require_single(f"{what}s", named, found)


def _require_single(what: str, named: str, found: Mapping[UUID, str]) -> UUID:
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} {what} end in {named}",
            code=ErrorCode.CLI_INVALID_ARGS,
            notes=[f"{identity}  {described}" for identity, described in found.items()],
            hint="give the whole id of one of them",
        )
    return next(iter(found))
