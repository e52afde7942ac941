"""Which task is meant by the eight digits that people copy from a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.errors import ErrorCode, NotFound, UsageError
from horsies.model.text import safe
from horsies_ops.reads.lookup import NEWEST_LOOKED_AT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies_ops.reads.lookup import Found


def the_one(short_form: str, found: Sequence[Found]) -> UUID:
    """The id of the only task that fits. Reads may use it; what changes a task takes whole ids only."""
    match found:
        case [task]:
            return task.id
        case []:
            raise NotFound(
                f"no task that has not ended, and none of the newest {NEWEST_LOOKED_AT:,}, ends in {short_form}",
                hint="give the whole id: horsies task list --full shows it",
            )
        case _:
            raise UsageError(
                f"{len(found)} tasks end in {short_form}",
                code=ErrorCode.CLI_INVALID_ARGS,
                notes=[f"{task.id}  {task.status}  {safe(task.name, limit=80)}" for task in found],
                hint="give the whole id of one of them",
            )
