"""Events: the stream of what happens, folded where it is much, followed until somebody looks closer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Final

from textual import work

from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import Facet, Facets
from horsies_tui.data.queries import LENGTH, Want
from horsies_tui.format import clock, plural
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import RunWanted, TasksWanted, TaskWanted, WorkerWanted
from horsies_tui.screens.base import ANY_TASK, MainScreen
from horsies_tui.screens.entries import Entry, matches, of_action, of_change, of_event
from horsies_tui.system import save_rows
from horsies_tui.widgets.facets import FacetPopup
from horsies_tui.widgets.filter_bar import FilterLine
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.data.context import DatabaseClock, Desk
    from horsies_tui.data.queries import Tape
    from horsies_tui.data.source import Source


# What happened, in columns.


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


EVENT_COLUMNS: Final[tuple[Column[Entry], ...]] = (
    Column(title="TIME", width=12, cell=lambda entry, _: Cell(_time(entry.at), Tone.DIM)),
    Column(title="ABOUT", width=6, cell=lambda entry, _: Cell(entry.kind)),
    Column(title="WHICH", width=20, grows=2, cell=lambda entry, _: Cell(entry.subject)),
    Column(title="WHAT", width=20, grows=1, cell=lambda entry, _: Cell(entry.what, entry.tone)),
    Column(title="MORE", width=15, grows=3, rank=1, cell=lambda entry, _: Cell(entry.note, Tone.DIM)),
)


# Bursts folded into a line or two, so that what is rare can still be seen among what is many.

MOST_LINES: Final = 12
"""Of one second; what is more becomes a single line."""


def folded(entries: Iterable[Entry]) -> list[Entry | Heading]:
    """The entries, the newest first; those of one second that say the same are one line."""
    return [line for _, second in groupby(entries, key=_second) for line in _lines(list(second))]


def _second(entry: Entry) -> int:
    return int(entry.at.timestamp())


def _lines(second: Sequence[Entry]) -> Iterator[Entry | Heading]:
    groups: dict[object, list[Entry]] = {}
    for entry in second:
        groups.setdefault(entry.alike, []).append(entry)
    merged = [_merged(group) for group in groups.values()]
    yield from merged[:MOST_LINES]
    if rest := merged[MOST_LINES:]:
        count = sum(entry.count for entry in rest)
        yield Heading(f"{clock(rest[0].at)}  {count:,} more folded, z unfolds")


def _merged(group: Sequence[Entry]) -> Entry:
    if len(group) == 1:
        return group[0]
    count = sum(entry.count for entry in group)
    ids = tuple(dict.fromkeys(each for entry in group for each in entry.ids))
    # The first that came is always among them: the line keeps its key while others join it.
    return replace(
        group[0],
        key=group[-1].key,
        subject=f"×{count:,} {group[0].stem}".rstrip(),
        note=", ".join(dict.fromkeys(entry.note for entry in group if entry.note)),
        count=count,
        ids=ids,
    )


# The whole stream of one moment: what was heard, what was written down, and what operators did.

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


class EventsScreen(MainScreen):
    """The newest on top. While the cursor is there the list follows; further down it stands still and counts."""

    place = Place.EVENTS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.EVENTS)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.seen = Happened(entries=(), known={}, per_minute=0)
        self.list: RowList[Entry] = RowList(
            EVENT_COLUMNS, key=lambda entry: entry.key, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._is_folded = True
        self._stopped_at: datetime | None = None
        """What is newer is not shown; None while following."""

    def body(self) -> ComposeResult:
        yield FilterLine(prompt=self.desk.glyphs.prompt)
        yield self.list

    @property
    def filter(self) -> TaskFilter:
        return self.query_one(FilterLine).filter

    @property
    def is_following(self) -> bool:
        return self._stopped_at is None

    def wants(self) -> Sequence[Want]:
        touched_by = ANY_TASK | {Topic.EVENT, Topic.WORKFLOW}
        return (Want(name="events", fetch=self._fetch, touched_by=touched_by, rest_s=0.5, every_s=5.0),)

    async def _fetch(self, source: Source) -> Happened:
        return await happened(source, self.desk.store.tape, self.desk.clock, self.seen.known)

    def take(self, name: str, value: object) -> None:
        del name
        if isinstance(value, Happened):
            self.seen = value
            self._show()

    def _show(self) -> None:
        now = self.desk.clock.now()
        fitting = [entry for entry in self.seen.entries if matches(entry, self.filter, now)]
        shown = [entry for entry in fitting if self._stopped_at is None or entry.at <= self._stopped_at]
        self.list.show(folded(shown) if self._is_folded else shown)
        if self.is_following:
            self.list.move_to(0)
        self._say(waiting=sum(entry.count for entry in fitting) - sum(entry.count for entry in shown))

    def _say(self, *, waiting: int) -> None:
        following = f"{self.desk.glyphs.running} following"
        state = following if self.is_following else f"{self.desk.glyphs.warn} {waiting:,} new, g follows"
        self.query_one(FilterLine).say(f"{state}   {self.seen.per_minute:,} ev/min ")
        self.say(
            f"{plural(len(self.seen.entries), 'event')} in memory",
            "nothing is written to disk",
            "" if self._is_folded else "unfolded",
            "p stops following",
        )

    def on_row_list_cursor_moved(self) -> None:
        """Going down stops the list; going back to the top lets it follow again."""
        is_on_top = self.list.selection.line == 0
        if is_on_top == self.is_following or not self.list.rows:
            return
        self._stopped_at = None if is_on_top else self.list.rows[0].at
        self._show()

    def on_row_list_opened(self) -> None:
        match self.list.current:
            case Entry(ids=(task_id,)):
                self.post_message(TaskWanted(task_id))
            case Entry(ids=ids) if ids:
                self.post_message(TasksWanted(TaskFilter(ids=tuple(map(str, ids)))))
            case Entry(workflow_id=run) if run is not None:
                self.post_message(RunWanted(run))
            case Entry(worker_id=worker) if worker is not None:
                self.post_message(WorkerWanted(worker))
            case _:
                self.notify("there is nothing behind this line")

    def on_filter_line_changed(self) -> None:
        self._show()

    def on_filter_line_left(self) -> None:
        self.list.focus()

    def step_back(self) -> bool:
        """Out of the filter; then the filter itself; then back to the top."""
        line = self.query_one(FilterLine)
        if line.has_focus_within:
            self.list.focus()
        elif not line.filter.is_empty or line.text:
            line.show(TaskFilter())
        elif not self.is_following:
            self.list.move_to(0)
        else:
            return False
        return True

    def action_filter_edit(self) -> None:
        self.query_one(FilterLine).edit()

    def action_filter_clear(self) -> None:
        self.query_one(FilterLine).show(TaskFilter())

    def action_filter_facets(self) -> None:
        self.app.push_screen(FacetPopup(self.desk, self._facets(), self.filter), self._picked)

    async def _facets(self) -> Facets:
        return self.seen.facets()

    def _picked(self, wanted: TaskFilter | None) -> None:
        if wanted is not None:
            self.query_one(FilterLine).show(wanted)

    def action_view_fold(self) -> None:
        self._is_folded = not self._is_folded
        self._show()

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Write everything that is in memory into a file."""
        await save_rows(self, "events", self.seen.entries, self.desk.clock.now())
