"""Queues: backlog, throughput and workers of each queue; pausing and resuming them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from textual.app import ComposeResult

from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.overview import QueueBucket, QueueRow
from horsies_ops.reads.search import Facet
from horsies_ops.reads.workers import WorkerRow
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.fleet import (
    BUCKET_COUNT,
    HOUR,
    TARGET_WAIT,
    THROUGHPUT_WINDOW,
    QueueHealth,
    align_buckets,
    drain_time,
    load_workers,
    queue_health,
)
from horsies_tui.format import format_age, format_count, format_short_age, plural, sanitize, short_id
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.model import ProposalFactory, propose_queue_pause_toggle
from horsies_tui.screens.base import TASK_TOPICS, ShowTasks
from horsies_tui.screens.lists import ListScreen, ProposalRunner, Sorting
from horsies_tui.theme import Glyph, downsample, sparkline
from horsies_tui.widgets.dialogs import SortOrder
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Tone

MAX_FACETS: Final = 5
CHART_WIDTH: Final = 20

# Columns and sort orders

_STATES: Final = {
    QueueHealth.OK: Cell("ok", Tone.DIM),
    QueueHealth.BACKLOG: Cell("backlog", Tone.WARN, glyph=Glyph.WARN),
    QueueHealth.PAUSED: Cell("paused", Tone.WARN, glyph=Glyph.PAUSED),
    QueueHealth.UNSERVED: Cell("unserved", Tone.BAD, glyph=Glyph.BAD),
}
_OLDEST_STEP = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    row: QueueRow
    due_since: datetime | None
    """When the oldest due task became due, by the database clock."""

    @classmethod
    def of(cls, row: QueueRow, now: datetime) -> QueueLine:
        return cls(row=row, due_since=None if row.oldest_due_age is None else now - row.oldest_due_age)


def _oldest_sort_key(line: QueueLine) -> int:
    # Rounded, so that healthy queues do not swap places every second.
    return 0 if line.row.oldest_due_age is None else line.row.oldest_due_age // _OLDEST_STEP


QUEUE_SORT_KEYS: Final[Mapping[str, Callable[[QueueLine, datetime], Any]]] = {
    "OLDEST": lambda line, _: _oldest_sort_key(line),
    "QUEUE": lambda line, _: line.row.name,
    "PRI": lambda line, _: -1 if line.row.priority is None else line.row.priority,
    "WAIT": lambda line, _: line.row.pending,
    "RUN": lambda line, _: line.row.running,
    "DONE/m": lambda line, _: line.row.finished_last_minute,
    "FAIL/m": lambda line, _: line.row.failed_last_minute,
}


def _oldest_cell(line: QueueLine, now: datetime) -> Cell:
    is_late = queue_health(line.row) is QueueHealth.BACKLOG
    age = None if line.due_since is None else now - line.due_since
    return Cell(format_age(age), Tone.WARN if is_late else Tone.PLAIN)


def _count_cell(number: int, *, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell(f"{number:,}", tone if number else Tone.DIM)


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _done_cell(line: QueueLine) -> Cell:
    done = line.row.finished_last_minute - line.row.failed_last_minute
    return Cell(format_count(done, is_estimate=line.row.is_estimate), Tone.PLAIN if done else Tone.DIM)


QUEUE_COLUMNS: Final[tuple[Column[QueueLine], ...]] = (
    Column("QUEUE", 13, lambda line: line.row.name, grows=1),
    Column("PRI", 3, lambda line: _or_dash(line.row.priority), right=True, drop_rank=4),
    Column("WAIT", 6, lambda line: _count_cell(line.row.pending), right=True),
    Column("DUE+", 5, lambda line: _count_cell(line.row.delayed), right=True, drop_rank=3),
    Column("CLAIM", 5, lambda line: _count_cell(line.row.claimed), right=True, drop_rank=2),
    Column("RUN/CAP", 7, lambda line: f"{line.row.running:,}/{_or_dash(line.row.max_concurrency)}", right=True),
    Column("OLDEST", 7, value_at=_oldest_cell, right=True),
    Column("DONE/m", 6, _done_cell, right=True, drop_rank=1),
    Column("FAIL/m", 6, lambda line: _count_cell(line.row.failed_last_minute, tone=Tone.BAD), right=True, drop_rank=1),
    Column("STATE", 10, lambda line: _STATES[queue_health(line.row)]),
)


# Detail pane


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDetail:
    """What the detail pane shows besides the row itself."""

    name: str
    buckets: tuple[QueueBucket, ...]
    """Of all queues."""
    pending_names: tuple[Facet, ...]
    """Task names among the newest pending tasks."""
    error_codes: tuple[Facet, ...]
    """Error codes of tasks sent within the last hour."""
    workers: tuple[WorkerRow, ...]

    def buckets_of(self, queue: str) -> tuple[QueueBucket, ...]:
        return tuple(bucket for bucket in self.buckets if bucket.queue == queue)


async def load_queue_detail(source: DataSource, name: str) -> QueueDetail:
    buckets = await source.queue_throughput(THROUGHPUT_WINDOW, BUCKET_COUNT)
    pending = await source.facets(TaskFilter(queues=(name,), statuses=(TaskStatus.PENDING,)))
    failed = await source.facets(TaskFilter(queues=(name,), statuses=(TaskStatus.FAILED,), newer_than=HOUR))
    workers = await load_workers(source)
    return QueueDetail(
        name=name,
        buckets=buckets,
        pending_names=pending.names,
        error_codes=failed.error_codes,
        workers=tuple(worker for worker in workers if worker.is_responsive and name in worker.queues),
    )


def detail_lines(queue: QueueRow, detail: QueueDetail, now: datetime) -> list[str]:
    """Wait times, pending tasks, workers and errors of one queue."""
    lines = [
        _wait_line(queue, detail, now),
        f"tasks      {_facet_text(detail.pending_names) or 'none waiting'}",
        f"served by  {_workers_text(detail.workers)}",
        f"failing    {_facet_text(detail.error_codes) or 'nothing in the last hour'}",
        _pause_line(queue, now),
    ]
    return [line for line in lines if line]


def _wait_line(queue: QueueRow, detail: QueueDetail, now: datetime) -> str:
    waits = [bucket and bucket.longest_wait for bucket in align_buckets(detail.buckets_of(queue.name), now)]
    chart = sparkline(downsample([wait.total_seconds() if wait else 0.0 for wait in waits], CHART_WIDTH))
    # None, so no text, if the queue is paused, unserved, or finished nothing in the last minute.
    drains_in = drain_time(queue)
    drain = f"  drains in ~{format_short_age(drains_in)}" if queue.pending and drains_in else ""
    return f"wait       {chart}  oldest {format_age(queue.oldest_due_age)} (target {format_age(TARGET_WAIT)}){drain}"


def _facet_text(facets: Sequence[Facet]) -> str:
    more = f" · {len(facets) - MAX_FACETS} more" if len(facets) > MAX_FACETS else ""
    return " · ".join(f"{sanitize(facet.value, limit=40)} {facet.count:,}" for facet in facets[:MAX_FACETS]) + more


def _workers_text(workers: Sequence[WorkerRow]) -> str:
    if not workers:
        return "no worker serves this queue; tasks will wait"
    labels = [f"{short_id(row.worker_id)} {row.hostname}:{row.pid} ({row.processes} slots)" for row in workers]
    more = f"   and {len(labels) - 2} more" if len(labels) > 2 else ""
    return "   ".join(labels[:2]) + more


def _pause_line(queue: QueueRow, now: datetime) -> str:
    if queue.paused_at is None:
        return ""
    reason = f": {queue.pause_reason}" if queue.pause_reason else ""
    return f"paused     {format_age(now - queue.paused_at)} ago by {queue.paused_by}{reason}"


class QueuesScreen(ListScreen[QueueLine], scope=ScreenId.QUEUES):
    """List of queues with a detail pane for the queue under the cursor."""

    no_rows_text = f"""No queues yet.
A queue appears with its first task, or with the first worker that serves it.
Healthy: STATE is ok, and no task waits longer than {format_age(TARGET_WAIT)}."""

    def __init__(self, context: AppContext) -> None:
        sorting = Sorting(QUEUE_SORT_KEYS, SortOrder(column="OLDEST"))
        *columns, state = QUEUE_COLUMNS
        trend = Column[QueueLine]("DONE, 30 MIN", BUCKET_COUNT // 2, self._trend_cell, drop_rank=5)
        super().__init__(context, (*columns, trend, state), key=lambda line: line.row.name, sorting=sorting)
        self.proposals = ProposalRunner(self)
        self._detail: QueueDetail | None = None

    def body(self) -> ComposeResult:
        yield self.filter_bar
        yield self.list
        yield Pane(name="queue-detail", classes="detail")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.EVENT}
        return (
            LiveQuery("queues", self._fetch, self.show_rows, topics, poll_s=5.0, min_interval_s=1.0),
            LiveQuery("detail", self._fetch_detail, self._show_queue_detail, TASK_TOPICS, min_interval_s=3.0),
        )

    async def _fetch(self, source: DataSource) -> tuple[QueueLine, ...]:
        queues = await source.list_queues()
        now = self.context.clock.now()
        return tuple(QueueLine.of(queue, now) for queue in queues)

    async def _fetch_detail(self, source: DataSource) -> QueueDetail | None:
        line = self.list.current
        return None if line is None else await load_queue_detail(source, line.row.name)

    def _show_queue_detail(self, detail: QueueDetail | None) -> None:
        self._detail = detail or self._detail
        self.show_detail()
        # The rows are the same; this repaints the charts that changed.
        self.list.show(self.list.rows)

    def _trend_cell(self, line: QueueLine) -> Cell:
        """Chart the finished tasks of a queue, as last read with the detail."""
        buckets = () if self._detail is None else self._detail.buckets_of(line.row.name)
        done = [0 if bucket is None else bucket.done for bucket in align_buckets(buckets, self.context.clock.now())]
        chart = sparkline(downsample(done, BUCKET_COUNT // 2))
        return Cell(chart, Tone.BUSY if any(done) else Tone.DIM)

    def show_detail(self) -> None:
        queue, detail = self.list.current and self.list.current.row, self._detail
        self.set_label("op.pause", "resume" if queue is not None and queue.is_paused else "pause")
        lines = list[str]
        # The detail query follows the cursor: until it has run, the detail is that of the previous row.
        if queue is not None and detail is not None and detail.name == queue.name:
            lines = partial(detail_lines, queue, detail, self.context.clock.now())
        self.show_pane("queue-detail", lines, title="" if queue is None else queue.name)

    def update_status(self) -> None:
        counts = Counter(queue_health(line.row) for line in self.list.rows)
        by_health = [f"{format_count(counts[health])} {health}" for health in QueueHealth if counts[health]]
        self.set_status(plural(len(self.list.rows), "queue"), self.order_text, *by_health)

    def on_row_list_opened(self) -> None:
        if (line := self.list.current) is not None:
            unfinished = tuple(status for status in TaskStatus if not status.is_terminal)
            self.post_message(ShowTasks(TaskFilter(queues=(line.row.name,), statuses=unfinished)))

    def proposal(self, verb: str) -> ProposalFactory | None:
        del verb  # `pause`, which also resumes
        line, now = self.list.current, self.context.clock.now()
        return line and partial(propose_queue_pause_toggle, name=line.row.name, now=now)

    def action_copy_id(self) -> None:
        if (line := self.list.current) is not None:
            self.copy_text(line.row.name, "the name")
