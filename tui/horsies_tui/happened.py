"""The whole stream of one moment: what was heard, what was written down, and what operators did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies_ops.reads.counts import Facet, Facets
from horsies_tui.entries import Entry, of_action, of_change, of_event
from horsies_tui.tape import LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.clock import DatabaseClock
    from horsies_tui.source import Source
    from horsies_tui.tape import Tape

WRITTEN: Final = 300
"""So many events that were written down are read, and so many actions at most."""

NAMED: Final = 500
"""Of the tasks, so many of the newest are looked up by their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Entries, the newest first."""

    entries: tuple[Entry, ...]
    known: Mapping[UUID, TaskSummary]
    """The tasks that they are about, as they were when first looked up."""
    per_minute: int

    def facets(self) -> Facets:
        """What the entries can be narrowed down by."""
        return Facets(
            statuses=_counted(status for entry in self.entries for status in entry.statuses),
            queues=_counted(entry.queue for entry in self.entries if entry.queue),
            names=_counted(entry.name for entry in self.entries if entry.name),
            error_codes=_counted(entry.error_code for entry in self.entries if entry.error_code),
        )


async def happened(source: Source, tape: Tape, clock: DatabaseClock, known: Mapping[UUID, TaskSummary]) -> Happened:
    """The newest of everything; tasks that are `known` are not asked for again."""
    written, actions = await source.events(limit=WRITTEN), await source.audit(limit=WRITTEN)
    # The newest first, here and below: of what shares an instant, the later comes before.
    heard = tuple(reversed(tape.heard))
    ids = dict.fromkeys(each for one in heard for each in one.change.ids)
    ids |= dict.fromkeys(row.task_id for row in reversed(written) if row.task_id is not None)
    wanted = list(ids)[:NAMED]
    looked_up = await source.tasks_by_id([each for each in wanted if each not in known])
    tasks = {each: known[each] for each in wanted if each in known} | {task.id: task for task in looked_up}
    entries = [
        *(of_change(each, tasks, offset=clock.offset) for each in heard),
        *(of_event(row, tasks) for row in reversed(written)),
        *map(of_action, reversed(actions)),
    ]
    entries.sort(key=lambda entry: entry.at, reverse=True)
    here = clock.now() - clock.offset
    return Happened(entries=tuple(entries[:LENGTH]), known=tasks, per_minute=tape.per_minute(here))


def _counted(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())
