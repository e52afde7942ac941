"""What the tasks of a list were given, as far as a column holds it: read once a task, for it never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies_tui.widgets.columns import Cell, Column, Tone
from horsies_tui.widgets.payload import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from uuid import UUID

    from horsies.model.settings import TuiConfig
    from horsies_ops.reads.payloads import Payload
    from horsies_ops.reads.tasks import TaskSummary

TITLE: Final = "ARGS"
MOST: Final = 5_000
"""So many are kept; beyond that it is cheaper to begin anew than to choose."""
LONGEST: Final = 200


class Excerpts:
    """Masked as the settings say, and cut."""

    def __init__(self, settings: TuiConfig) -> None:
        self._settings = settings
        self._known: dict[UUID, str] = {}

    @property
    def column(self) -> Column[TaskSummary]:
        return Column(title=TITLE, width=16, grows=6, rank=8, cell=self._cell)

    def missing(self, tasks: Iterable[TaskSummary]) -> list[UUID]:
        """Those of these tasks that nothing is known of yet."""
        return [task.id for task in tasks if task.id not in self._known]

    def learn(self, payloads: Mapping[UUID, Payload]) -> None:
        if len(self._known) > MOST:
            self._known.clear()
        self._known |= {key: self._excerpt(payload) for key, payload in payloads.items()}

    def _excerpt(self, payload: Payload) -> str:
        document = payload.document
        if document is None:
            return f"{payload.size / 1000:.0f} kB"
        return one_line(document, self._settings)[:LONGEST]

    def _cell(self, task: TaskSummary, _: datetime) -> Cell:
        return Cell(self._known.get(task.id, ""), Tone.DIM)
