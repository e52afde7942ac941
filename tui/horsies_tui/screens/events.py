"""Events: the stream of what happens, folded where it is much, followed until somebody looks closer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import ClassVar, Final
from uuid import UUID

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType

from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import Facet, Facets
from horsies_ops.reads.tasks import TaskSummary
from horsies_tui.data.context import AppContext, DatabaseClock
from horsies_tui.data.queries import MAX_CHANGES, ChangeLog, LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_time, plural
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import OpenTask, ShowRun, ShowTasks, ShowWorker
from horsies_tui.screens.base import TASK_TOPICS, MainScreen
from horsies_tui.screens.entries import StreamEntry, entry_from_audit, entry_from_change, entry_from_event, matches
from horsies_tui.system import save_rows
from horsies_tui.widgets.facets import FacetPopup
from horsies_tui.widgets.filter_bar import TaskFilterBar
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

# What happened, in columns.


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


EVENT_COLUMNS: Final[tuple[Column[StreamEntry], ...]] = (
    Column(title="TIME", width=12, cell=lambda entry, _: Cell(_time(entry.at), Tone.DIM)),
    Column(title="ABOUT", width=6, cell=lambda entry, _: Cell(entry.kind)),
    Column(title="WHICH", width=20, grows=2, cell=lambda entry, _: Cell(entry.subject)),
    Column(title="WHAT", width=20, grows=1, cell=lambda entry, _: Cell(entry.what, entry.tone)),
    Column(title="MORE", width=15, grows=3, drop_rank=1, cell=lambda entry, _: Cell(entry.note, Tone.DIM)),
)


# Bursts folded into a line or two, so that what is rare can still be seen among what is many.

MAX_LINES_PER_SECOND: Final = 12
"""Of one second; what is more becomes a single line."""


def fold_entries(entries: Iterable[StreamEntry]) -> list[StreamEntry | Heading]:
    """The entries, the newest first; those of one second that say the same are one line."""
    return [line for _, second in groupby(entries, key=_second) for line in _fold_second(list(second))]


def _second(entry: StreamEntry) -> int:
    return int(entry.at.timestamp())


def _fold_second(second: Sequence[StreamEntry]) -> Iterator[StreamEntry | Heading]:
    groups: dict[object, list[StreamEntry]] = {}
    for entry in second:
        groups.setdefault(entry.group_key, []).append(entry)
    merged = [_merge_entries(group) for group in groups.values()]
    yield from merged[:MAX_LINES_PER_SECOND]
    if rest := merged[MAX_LINES_PER_SECOND:]:
        count = sum(entry.count for entry in rest)
        yield Heading(f"{format_time(rest[0].at)}  {count:,} more folded, z unfolds")


def _merge_entries(group: Sequence[StreamEntry]) -> StreamEntry:
    if len(group) == 1:
        return group[0]
    count = sum(entry.count for entry in group)
    ids = tuple(dict.fromkeys(each for entry in group for each in entry.ids))
    # The first that came is always among them: the line keeps its key while others join it.
    return replace(
        group[0],
        key=group[-1].key,
        subject=f"×{count:,} {group[0].group_name}".rstrip(),
        note=", ".join(dict.fromkeys(entry.note for entry in group if entry.note)),
        count=count,
        ids=ids,
    )


# The whole stream of one moment: what was heard, what was written down, and what operators did.

MAX_EVENTS: Final = 300
"""So many events that were written down are read, and so many actions at most."""

MAX_TASK_LOOKUPS: Final = 500
"""Of the tasks, so many of the newest are looked up by their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """Entries, the newest first."""

    entries: tuple[StreamEntry, ...]
    known_tasks: Mapping[UUID, TaskSummary]
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


async def load_event_stream(
    source: DataSource, change_log: ChangeLog, clock: DatabaseClock, known_tasks: Mapping[UUID, TaskSummary]
) -> EventStream:
    """The newest of everything; tasks that are `known` are not asked for again."""
    written, actions = await source.events(limit=MAX_EVENTS), await source.audit(limit=MAX_EVENTS)
    # The newest first, here and below: of what shares an instant, the later comes before.
    heard = tuple(reversed(change_log.changes))
    ids = dict.fromkeys(each for one in heard for each in one.change.ids)
    ids |= dict.fromkeys(row.task_id for row in reversed(written) if row.task_id is not None)
    wanted = list(ids)[:MAX_TASK_LOOKUPS]
    looked_up = await source.tasks_by_id([each for each in wanted if each not in known_tasks])
    tasks = {each: known_tasks[each] for each in wanted if each in known_tasks} | {task.id: task for task in looked_up}
    entries = [
        *(entry_from_change(each, tasks, offset=clock.offset) for each in heard),
        *(entry_from_event(row, tasks) for row in reversed(written)),
        *map(entry_from_audit, reversed(actions)),
    ]
    entries.sort(key=lambda entry: entry.at, reverse=True)
    here = clock.now() - clock.offset
    return EventStream(entries=tuple(entries[:MAX_CHANGES]), known_tasks=tasks, per_minute=change_log.per_minute(here))


def _counted(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())


class EventsScreen(MainScreen):
    """The newest on top. While the cursor is there the list follows; further down it stands still and counts."""

    place = Place.EVENTS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.EVENTS)]

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self.stream = EventStream(entries=(), known_tasks={}, per_minute=0)
        self.list: RowList[StreamEntry] = RowList(
            EVENT_COLUMNS, key=lambda entry: entry.key, now=context.clock.now, glyphs=context.glyphs
        )
        self._is_folded = True
        self._frozen_at: datetime | None = None
        """What is newer is not shown; None while following."""

    def body(self) -> ComposeResult:
        yield TaskFilterBar(prompt=self.context.glyphs.prompt)
        yield self.list

    @property
    def filter(self) -> TaskFilter:
        return self.query_one(TaskFilterBar).filter

    @property
    def is_following(self) -> bool:
        return self._frozen_at is None

    def live_queries(self) -> Sequence[LiveQuery]:
        touched_by = TASK_TOPICS | {Topic.EVENT, Topic.WORKFLOW}
        return (LiveQuery(name="events", fetch=self._fetch, invalidated_by=touched_by, min_interval_s=0.5, poll_s=5.0),)

    async def _fetch(self, source: DataSource) -> EventStream:
        return await load_event_stream(
            source, self.context.queries.change_log, self.context.clock, self.stream.known_tasks
        )

    def show_result(self, name: str, value: object) -> None:
        del name
        if isinstance(value, EventStream):
            self.stream = value
            self._show()

    def _show(self) -> None:
        now = self.context.clock.now()
        fitting = [entry for entry in self.stream.entries if matches(entry, self.filter, now)]
        shown = [entry for entry in fitting if self._frozen_at is None or entry.at <= self._frozen_at]
        self.list.show(fold_entries(shown) if self._is_folded else shown)
        if self.is_following:
            self.list.move_to(0)
        self._say(waiting=sum(entry.count for entry in fitting) - sum(entry.count for entry in shown))

    def _say(self, *, waiting: int) -> None:
        following = f"{self.context.glyphs.running} following"
        state = following if self.is_following else f"{self.context.glyphs.warn} {waiting:,} new, g follows"
        self.query_one(TaskFilterBar).set_status(f"{state}   {self.stream.per_minute:,} ev/min ")
        self.set_status(
            f"{plural(len(self.stream.entries), 'event')} in memory",
            "nothing is written to disk",
            "" if self._is_folded else "unfolded",
            "p stops following",
        )

    def on_row_list_cursor_moved(self) -> None:
        """Going down stops the list; going back to the top lets it follow again."""
        is_on_top = self.list.selection.cursor_index == 0
        if is_on_top == self.is_following or not self.list.rows:
            return
        self._frozen_at = None if is_on_top else self.list.rows[0].at
        self._show()

    def on_row_list_opened(self) -> None:
        match self.list.current:
            case StreamEntry(ids=(task_id,)):
                self.post_message(OpenTask(task_id))
            case StreamEntry(ids=ids) if ids:
                self.post_message(ShowTasks(TaskFilter(ids=tuple(map(str, ids)))))
            case StreamEntry(workflow_id=run) if run is not None:
                self.post_message(ShowRun(run))
            case StreamEntry(worker_id=worker) if worker is not None:
                self.post_message(ShowWorker(worker))
            case _:
                self.notify("there is nothing behind this line")

    def on_task_filter_bar_changed(self) -> None:
        self._show()

    def on_task_filter_bar_exited(self) -> None:
        self.list.focus()

    def step_back(self) -> bool:
        """Out of the filter; then the filter itself; then back to the top."""
        line = self.query_one(TaskFilterBar)
        if line.has_focus_within:
            self.list.focus()
        elif not line.filter.is_empty or line.text:
            line.set_filter(TaskFilter())
        elif not self.is_following:
            self.list.move_to(0)
        else:
            return False
        return True

    def action_filter_edit(self) -> None:
        self.query_one(TaskFilterBar).edit()

    def action_filter_clear(self) -> None:
        self.query_one(TaskFilterBar).set_filter(TaskFilter())

    def action_filter_facets(self) -> None:
        self.app.push_screen(FacetPopup(self.context, self._facets(), self.filter), self._picked)

    async def _facets(self) -> Facets:
        return self.stream.facets()

    def _picked(self, task_filter: TaskFilter | None) -> None:
        if task_filter is not None:
            self.query_one(TaskFilterBar).set_filter(task_filter)

    def action_view_fold(self) -> None:
        self._is_folded = not self._is_folded
        self._show()

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Write everything that is in memory into a file."""
        await save_rows(self, "events", self.stream.entries, self.context.clock.now())
