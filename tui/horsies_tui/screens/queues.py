"""Queues: what waits, what runs, who serves it; and the switch that stops the claiming."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.queues import QueueRow
from horsies_ops.reads.search import Facet
from horsies_ops.reads.workers import WorkerRow
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, format_count, format_short_age, plural, safe, sanitize, short_id
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import ShowTasks
from horsies_tui.proposals.model import Proposal
from horsies_tui.proposals.workflows import propose_queue_pause_toggle
from horsies_tui.screens.base import TASK_TOPICS
from horsies_tui.screens.fleet import TARGET_WAIT, QueueHealth, align_buckets, drain_time, queue_health
from horsies_tui.screens.fleet_details import QueueDetail, load_queue_detail
from horsies_tui.screens.lists import SortedListScreen
from horsies_tui.theme import Glyphs, downsample, sparkline
from horsies_tui.widgets.row_list import Cell, Column, Tone

# Queues in columns, and the orders that they can be put in.

_TONES = {
    QueueHealth.OK: Tone.GOOD,
    QueueHealth.BACKLOG: Tone.WARN,
    QueueHealth.PAUSED: Tone.DIM,
    QueueHealth.UNSERVED: Tone.BAD,
}
_OLDEST_STEP = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """A queue, and since when its oldest task has been due, by the database's clock."""

    row: QueueRow
    due_since: datetime | None

    @classmethod
    def of(cls, row: QueueRow, now: datetime) -> QueueLine:
        return cls(row=row, due_since=None if row.oldest_due_age is None else now - row.oldest_due_age)


def _oldest(line: QueueLine) -> int:
    """In steps: queues that are well would change places every second."""
    return 0 if line.row.oldest_due_age is None else line.row.oldest_due_age // _OLDEST_STEP


QUEUE_SORT_KEYS: Final[Mapping[str, Callable[[QueueLine], Any]]] = {
    "OLDEST": _oldest,
    "QUEUE": lambda line: line.row.name,
    "PRI": lambda line: -1 if line.row.priority is None else line.row.priority,
    "PEND": lambda line: line.row.pending,
    "RUN": lambda line: line.row.running,
    "DONE/m": lambda line: line.row.finished_last_minute,
    "FAIL/m": lambda line: line.row.failed_last_minute,
}


def queue_columns(glyphs: Glyphs) -> tuple[Column[QueueLine], ...]:
    signs = {QueueHealth.BACKLOG: glyphs.warn, QueueHealth.PAUSED: glyphs.paused, QueueHealth.UNSERVED: glyphs.bad}

    def state(line: QueueLine, _: datetime) -> Cell:
        health = queue_health(line.row)
        return Cell(f"{signs[health]} {health}" if health in signs else health, _TONES[health])

    return (
        Column(title="QUEUE", width=13, grows=1, cell=lambda line, _: Cell(line.row.name)),
        Column(title="PRI", width=3, right=True, drop_rank=4, cell=lambda line, _: Cell(_or_dash(line.row.priority))),
        Column(title="PEND", width=6, right=True, cell=lambda line, _: _count_health(line.row.pending)),
        Column(title="DUE+", width=5, right=True, drop_rank=3, cell=lambda line, _: _count_health(line.row.delayed)),
        Column(title="CLAIM", width=5, right=True, drop_rank=2, cell=lambda line, _: _count_health(line.row.claimed)),
        Column(title="RUN/CAP", width=8, right=True, cell=lambda line, _: Cell(_of_cap(line.row))),
        Column(title="OLDEST", width=7, right=True, ticks=True, cell=_waiting),
        Column(title="DONE/m", width=6, right=True, drop_rank=1, cell=lambda line, _: _count_health(_done(line.row))),
        Column(
            title="FAIL/m",
            width=6,
            right=True,
            drop_rank=1,
            cell=lambda line, _: _count_health(line.row.failed_last_minute, tone=Tone.BAD),
        ),
        Column(title="STATE", width=9, cell=state),
    )


def _waiting(line: QueueLine, now: datetime) -> Cell:
    is_late = queue_health(line.row) is QueueHealth.BACKLOG
    waited = None if line.due_since is None else now - line.due_since
    return Cell(format_age(waited), Tone.WARN if is_late else Tone.PLAIN)


def _count_health(number: int, *, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell(f"{number:,}", tone if number else Tone.DIM)


def _of_cap(queue: QueueRow) -> str:
    return f"{queue.running:,}/{_or_dash(queue.max_concurrency)}"


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _done(queue: QueueRow) -> int:
    return queue.finished_last_minute - queue.failed_last_minute


# The lines below the list that say more about the queue under the cursor.

MAX_FACETS: Final = 5
CHART_WIDTH: Final = 20


class QueueView(Static):
    """How long was waited, for what, who serves it and what goes wrong."""

    def show(self, queue: QueueRow | None, detail: QueueDetail | None, *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = safe("" if queue is None else f" {queue.name} ", cells=60)
        if queue is None or detail is None or detail.name != queue.name:
            self.update("")
            return
        lines = [
            _wait(queue, detail, now, glyphs),
            f"tasks      {_facet_text(detail.pending_names) or 'none waiting'}",
            f"served by  {_served_by(detail.workers)}",
            f"failing    {_facet_text(detail.error_codes) or 'nothing in the last hour'}",
            _pause(queue, now),
        ]
        self.update(Content("\n").join([safe(line) for line in lines if line]))


def _wait(queue: QueueRow, detail: QueueDetail, now: datetime, glyphs: Glyphs) -> str:
    waits = [each and each.longest_wait for each in align_buckets(detail.buckets, now)]
    chart = sparkline(downsample([wait.total_seconds() if wait else 0.0 for wait in waits], CHART_WIDTH), glyphs)
    drained = drain_time(queue)
    drain = f"  drains in ~{format_short_age(drained)}" if queue.pending and drained else ""
    return f"wait       {chart}  oldest {format_age(queue.oldest_due_age)} (target {format_age(TARGET_WAIT)}){drain}"


def _facet_text(facets: Sequence[Facet]) -> str:
    more = f" · {len(facets) - MAX_FACETS} more" if len(facets) > MAX_FACETS else ""
    return " · ".join(f"{sanitize(facet.value, limit=40)} {facet.count:,}" for facet in facets[:MAX_FACETS]) + more


def _served_by(servers: Sequence[WorkerRow]) -> str:
    if not servers:
        return "nobody: what is sent here stays here"
    named = [f"{short_id(each.worker_id)} {each.hostname}:{each.pid} ({each.processes} slots)" for each in servers]
    more = f"   and {len(named) - 2} more" if len(named) > 2 else ""
    return "   ".join(named[:2]) + more


def _pause(queue: QueueRow, now: datetime) -> str:
    if queue.paused_at is None:
        return ""
    why = f": {queue.pause_reason}" if queue.pause_reason else ""
    return f"paused     {format_age(now - queue.paused_at)} ago by {queue.paused_by}{why}"


class QueuesScreen(SortedListScreen[QueueLine]):
    """The list, and below it more about the queue under the cursor."""

    place = Place.QUEUES
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.QUEUES)]
    sort_keys = QUEUE_SORT_KEYS

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs, queue_columns(context.glyphs), key=lambda line: line.row.name)
        self._detail: QueueDetail | None = None

    def body(self) -> ComposeResult:
        yield self.search_bar
        yield self.list
        yield QueueView(classes="detail")

    def live_queries(self) -> Sequence[LiveQuery]:
        moves = TASK_TOPICS | {Topic.EVENT}
        return (
            LiveQuery(name="queues", fetch=self._fetch, invalidated_by=moves, poll_s=5.0, min_interval_s=1.0),
            LiveQuery(name="detail", fetch=self._fetch_detail, invalidated_by=TASK_TOPICS, min_interval_s=3.0),
        )

    async def _fetch(self, source: DataSource) -> tuple[QueueLine, ...]:
        queues = await source.list_queues()
        now = self.context.clock.now()
        return tuple(QueueLine.of(queue, now) for queue in queues)

    async def _fetch_detail(self, source: DataSource) -> QueueDetail | None:
        line = self.list.current
        return None if line is None else await load_queue_detail(source, line.row.name)

    def show_result(self, name: str, value: object) -> None:
        if name == "queues":
            self.show_rows(cast("tuple[QueueLine, ...]", value))
            self._say()
        elif isinstance(value, QueueDetail):
            self._detail = value
        self.show_detail()

    def show_detail(self) -> None:
        line = self.list.current
        self.query_one(QueueView).show(
            line and line.row, self._detail, now=self.context.clock.now(), glyphs=self.context.glyphs
        )

    def _say(self) -> None:
        rows = [line.row for line in self.list.rows]
        ill = [
            f"{format_count(count)} {health}"
            for health in QueueHealth
            if (count := _count_with_health(self.list.rows, health))
        ]
        self.set_status(plural(len(rows), "queue"), str(self.order), *ill)

    def on_row_list_opened(self) -> None:
        if (line := self.list.current) is not None:
            live = tuple(status for status in TaskStatus if not status.is_terminal)
            self.post_message(ShowTasks(TaskFilter(queues=(line.row.name,), statuses=live)))

    def action_op_pause(self) -> None:
        if (line := self.list.current) is None:
            self.notify("no queue to pause")
            return
        name = line.row.name

        def proposal(source: DataSource) -> Awaitable[Proposal]:
            return propose_queue_pause_toggle(source, name, self.context.clock.now())

        self.propose(proposal)

    def action_copy_id(self) -> None:
        if (line := self.list.current) is not None:
            self.copy_text(line.row.name, "the name")


def _count_with_health(lines: Sequence[QueueLine], health: QueueHealth) -> int:
    return sum(queue_health(line.row) is health for line in lines)
