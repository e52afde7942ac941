"""Events: a live stream of changes, recorded events and operator actions, with bursts folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from textual import work
from textual.app import ComposeResult

from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import Facet, Facets
from horsies_ops.reads.tasks import TaskSummary
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext, DatabaseClock
from horsies_tui.data.queries import MAX_CHANGES, ChangeLog, LiveQuery
from horsies_tui.format import format_time, plural
from horsies_tui.keys import ScreenId
from horsies_tui.screens.base import NOTHING_MATCHES, TASK_TOPICS, MainScreen, OpenTask, ShowRun, ShowTasks, ShowWorker
from horsies_tui.screens.entries import StreamEntry, entry_from_audit, entry_from_change, entry_from_event, matches
from horsies_tui.system import save_rows
from horsies_tui.theme import Glyph
from horsies_tui.widgets.filter_bar import TASK_FILTER, FacetPopup, FilterBar
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

NO_EVENTS_TEXT: Final = """No events yet.
Sends, starts, results, recoveries and operator actions appear here as they happen.
Healthy: a quiet stream if no task waits; recoveries and lost workers are rare."""

MAX_LINES_PER_SECOND: Final = 12
"""Further lines of the same second become a single one."""

MAX_EVENTS: Final = 300
"""How many recorded events are read, and how many operator actions."""

MAX_TASK_LOOKUPS: Final = 500
"""How many tasks are looked up by id to show their names; newest first."""

EVENT_COLUMNS: Final[tuple[Column[StreamEntry], ...]] = (
    # Milliseconds: the last three digits of %f are cut off.
    Column("TIME", 12, lambda entry: f"{entry.at.astimezone(UTC):%H:%M:%S.%f}"[:-3], tone=Tone.DIM),
    Column("KIND", 6, lambda entry: entry.kind),
    Column("SUBJECT", 20, lambda entry: entry.subject, grows=2),
    Column("EVENT", 20, lambda entry: Cell(entry.summary, entry.tone), grows=1),
    Column("DETAILS", 15, lambda entry: entry.note, tone=Tone.DIM, grows=3, drop_rank=1),
)


# Folding, so that a burst does not push rare events off the screen


def fold_entries(entries: Iterable[StreamEntry]) -> list[StreamEntry | Heading]:
    """Merge similar entries of the same second; `entries` are sorted newest first."""
    by_second = groupby(entries, key=lambda entry: int(entry.at.timestamp()))
    return [line for _, second in by_second for line in _fold_second(list(second))]


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
    ids = tuple(dict.fromkeys(task_id for entry in group for task_id in entry.ids))
    return replace(
        group[0],
        # The key of the oldest entry, so that the line keeps its key while newer ones join it.
        key=group[-1].key,
        subject=f"×{count:,} {group[0].group_name}".rstrip(),
        note=", ".join(dict.fromkeys(entry.note for entry in group if entry.note)),
        count=count,
        ids=ids,
    )


# Loading the stream


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """The loaded entries, newest first."""

    entries: tuple[StreamEntry, ...]
    known_tasks: Mapping[UUID, TaskSummary]
    """The tasks behind the entries, as first looked up."""
    per_minute: int

    def facets(self) -> Facets:
        return Facets(
            statuses=_count_values(status for entry in self.entries for status in entry.statuses),
            queues=_count_values(entry.queue for entry in self.entries if entry.queue),
            names=_count_values(entry.name for entry in self.entries if entry.name),
            error_codes=_count_values(entry.error_code for entry in self.entries if entry.error_code),
        )


def _count_values(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())


async def load_event_stream(
    source: DataSource,
    change_log: ChangeLog,
    clock: DatabaseClock,
    known_tasks: Mapping[UUID, TaskSummary],
    *,
    limit: int = MAX_CHANGES,
) -> EventStream:
    """Load the newest entries of all kinds; tasks in `known_tasks` are not looked up again."""
    most = min(limit, MAX_EVENTS)
    recorded, actions = await source.events(limit=most), await source.audit(limit=most)
    # Reversed to newest first, here and below; the stable sort keeps this order within one instant.
    changes = tuple(reversed(change_log.changes))[:limit]
    task_ids = dict.fromkeys(task_id for logged in changes for task_id in logged.change.ids)
    task_ids |= dict.fromkeys(row.task_id for row in reversed(recorded) if row.task_id is not None)
    newest_ids = list(task_ids)[:MAX_TASK_LOOKUPS]
    looked_up = await source.tasks_by_id([task_id for task_id in newest_ids if task_id not in known_tasks])
    tasks = {task_id: known_tasks[task_id] for task_id in newest_ids if task_id in known_tasks}
    tasks |= {task.id: task for task in looked_up}
    entries = [
        *(entry_from_change(logged, tasks, offset=clock.offset) for logged in changes),
        *(entry_from_event(row, tasks) for row in reversed(recorded)),
        *map(entry_from_audit, reversed(actions)),
    ]
    entries.sort(key=lambda entry: entry.at, reverse=True)
    # Changes are logged with the time of the local clock.
    local_now = clock.now() - clock.offset
    shown = [*entries[:limit], *(entry for entry in entries[limit:] if entry.headline)]
    return EventStream(entries=tuple(shown), known_tasks=tasks, per_minute=change_log.per_minute(local_now))


class EventsScreen(MainScreen, scope=ScreenId.EVENTS):
    """The list, newest first. It follows while the cursor is on top; below, it stands still and counts new entries."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.filter_bar = FilterBar(TASK_FILTER)
        self.stream = EventStream(entries=(), known_tasks={}, per_minute=0)
        self.list: RowList[StreamEntry] = RowList(
            EVENT_COLUMNS, key=lambda entry: entry.key, context=context, follows_top=True
        )
        self._is_folded = True
        self._frozen_at: datetime | None = None
        """Newer entries are not shown; None while following."""

    def body(self) -> ComposeResult:
        yield self.filter_bar
        yield self.list

    @property
    def filter(self) -> TaskFilter:
        return self.filter_bar.filter

    @property
    def is_following(self) -> bool:
        return self._frozen_at is None

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.EVENT, Topic.WORKFLOW}
        context = self.context
        return (
            LiveQuery(
                "events",
                lambda source: load_event_stream(
                    source, context.queries.change_log, context.clock, self.stream.known_tasks
                ),
                self._show_stream,
                topics,
                min_interval_s=0.5,
                poll_s=5.0,
            ),
        )

    def _show_stream(self, stream: EventStream) -> None:
        self.stream = stream
        self._show()

    def _show(self) -> None:
        now = self.context.clock.now()
        matching = [entry for entry in self.stream.entries if matches(entry, self.filter, now)]
        shown = [entry for entry in matching if self._frozen_at is None or entry.at <= self._frozen_at]
        self.list.empty_text = NOTHING_MATCHES if self.stream.entries else NO_EVENTS_TEXT
        self.list.show(fold_entries(shown) if self._is_folded else shown)
        self._update_status(new_count=sum(entry.count for entry in matching) - sum(entry.count for entry in shown))

    def _update_status(self, *, new_count: int) -> None:
        following = f"{Glyph.RUNNING} following"
        state = following if self.is_following else f"{Glyph.WARN} {new_count:,} new, g follows"
        self.filter_bar.set_status(f"{state}   {self.stream.per_minute:,} ev/min ")
        self.set_status(
            f"last {plural(len(self.stream.entries), 'event')}, kept in memory",
            "" if self._is_folded else "unfolded",
            "p stops following",
        )

    def on_row_list_cursor_moved(self) -> None:
        """Stop following when the cursor leaves the top row; follow again when it returns."""
        is_on_top = self.list.selection.cursor_index == 0
        # `_show` posts this message too: redrawing without a change of state would never end.
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
            case StreamEntry(workflow_id=run_id) if run_id is not None:
                self.post_message(ShowRun(run_id))
            case StreamEntry(worker_id=worker_id) if worker_id is not None:
                self.post_message(ShowWorker(worker_id))
            case _:
                self.notify("nothing to open for this event")

    def on_filter_bar_changed(self) -> None:
        self._show()
        self.list.move_to(0)

    def step_back(self) -> bool:
        """Leave the filter bar, then clear the filter, then return to the top."""
        if self.filter_bar.step_back():
            return True
        if self.is_following:
            return False
        self.list.move_to(0)
        return True

    def action_filter_facets(self) -> None:
        self.app.push_screen(FacetPopup(self.context, self._facets(), self.filter), self._on_facets_picked)

    async def _facets(self) -> Facets:
        return self.stream.facets()

    def _on_facets_picked(self, task_filter: TaskFilter | None) -> None:
        if task_filter is not None:
            self.filter_bar.set_filter(task_filter)

    def action_view_fold(self) -> None:
        self._is_folded = not self._is_folded
        self._show()

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Save all loaded entries to a file."""
        await save_rows(self, "events", self.stream.entries, self.context.clock.now())
