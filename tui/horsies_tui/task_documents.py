"""Tasks as documents that leave the screen: masked as the screen masks them, and without what only time makes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from horsies_ops.cli.output import to_json
from horsies_ops.reads.tasks import TaskSummary
from horsies_tui.widgets.payload import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.model.settings import TuiConfig
    from horsies_tui.source import Source

OF_THE_MOMENT: Final = ("age", "silence")
"""True when they were read, and no longer when the file is; the instants that they come from are there."""
COLUMNS: Final = tuple(each.name for each in fields(TaskSummary) if each.name not in OF_THE_MOMENT)
"""Named one by one: a row that knows more than a list shows must not take that along unmasked."""


async def documents(source: Source, tasks: Sequence[TaskSummary], settings: TuiConfig) -> list[dict[str, Any]]:
    """Each task with its arguments; those that are too long for a list are None."""
    payloads = await source.payloads_of([task.id for task in tasks])
    given = {key: shown(payload.document, settings) for key, payload in payloads.items()}
    return [
        {name: to_json(getattr(task, name)) for name in COLUMNS} | {"arguments": given.get(task.id)} for task in tasks
    ]
