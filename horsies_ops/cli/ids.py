"""Resolves the short ids that lists show to tasks, runs and workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.errors import ErrorCode, NotFound, UsageError
from horsies.model.text import sanitize_text
from horsies_ops.reads.filters import is_short_id

if TYPE_CHECKING:
    from horsies_ops.ops import Ops
    from horsies_ops.reads.search import ShortIdMatch


async def resolve_task_id(ops: Ops, id_text: str) -> UUID:
    """Return a full id as it is, or find the one task with this short id.

    Raises NotFound if no task has it and UsageError if several have it.
    """
    return await _resolve("task", id_text, ops.tasks_by_short_id, list_command="horsies task list --full")


async def resolve_run_id(ops: Ops, id_text: str) -> UUID:
    """Do the same for workflow runs."""
    return await _resolve("run", id_text, ops.runs_by_short_id, list_command="horsies workflow list")


async def resolve_worker_id(ops: Ops, id_text: str) -> UUID:
    """Do the same for workers; a stopped worker needs its full id."""
    if not is_short_id(id_text):
        return UUID(id_text)
    threshold = timedelta(milliseconds=ops.settings.recovery.worker_stale_threshold_ms)
    # Filtered here: unlike tasks and runs, workers are few.
    found = {
        worker.worker_id: f"{worker.state}  {sanitize_text(worker.hostname, limit=80)}:{worker.pid}"
        for worker in await ops.list_active_workers(threshold)
        if worker.worker_id.hex.endswith(id_text.lower())
    }
    if not found:
        raise NotFound(
            f"no worker with short id {id_text} (stopped workers are not searched)",
            hint="use the full id: horsies workers list --full shows it",
        )
    return _require_single("workers", id_text, found)


async def _resolve(
    noun: str,
    id_text: str,
    find: Callable[[str], Awaitable[Iterable[ShortIdMatch]]],
    *,
    list_command: str,
) -> UUID:
    # Imported here: it loads the driver, which --help does not need.
    from horsies_ops.reads.search import NEWEST_SEARCHED

    if not is_short_id(id_text):
        return UUID(id_text)
    matches = await find(id_text)
    found = {match.id: f"{match.status}  {sanitize_text(match.name, limit=80)}" for match in matches}
    if not found:
        raise NotFound(
            f"no {noun} with short id {id_text} (searched unfinished and the newest {NEWEST_SEARCHED:,})",
            hint=f"use the full id: {list_command} shows it",
        )
    return _require_single(f"{noun}s", id_text, found)


def _require_single(noun: str, short_id: str, found: Mapping[UUID, str]) -> UUID:
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} {noun} have the short id {short_id}",
            code=ErrorCode.CLI_INVALID_ARGS,
            notes=[f"{full_id}  {description}" for full_id, description in found.items()],
            hint="use the full id of one of them",
        )
    return next(iter(found))
