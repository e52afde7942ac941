"""The first screen: how it goes, what needs attention, and what operators did last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from uuid import UUID

from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filter import TaskFilter
from horsies_tui.actions import Place, bindings
from horsies_tui.attention import Concern, Seen, Severity, attention
from horsies_tui.fleet import BUCKETS, HOUR, WINDOW, missing, workers_of
from horsies_tui.format import clock, number, plural, safe
from horsies_tui.messages import TasksWanted, WorkerWanted
from horsies_tui.operator_log import log_line
from horsies_tui.screens.main_screen import ANY_TASK, OVERVIEW, MainScreen
from horsies_tui.store import Want
from horsies_tui.widgets.columns import Cell, Column, Tone
from horsies_tui.widgets.glance import Pace, QueuePaces, TaskCounts
from horsies_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.events import AuditRow
    from horsies_ops.reads.overview import Overview
    from horsies_ops.reads.throughput import QueueBucket, Throughput
    from horsies_tui.desk import Desk
    from horsies_tui.glyphs import Glyphs
    from horsies_tui.source import Source

PARTS: Final = ("stale", "workers", "errors")
"""What is wanted for `Seen`, by the names of its fields."""

MOST_ACTIONS: Final = 8
ROOMY: Final = 120


class DashboardScreen(MainScreen):
    """Numbers above, the list of what needs attention in the middle, the operator log below."""

    place = Place.DASH
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.DASH)]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-small"), (80, "-usual"), (ROOMY, "-roomy")]  # noqa: RUF012  # Textual has it so
    overview_rest_s = 1.0

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.list: RowList[Concern] = RowList(
            _columns(desk.glyphs), key=lambda concern: concern.key, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._seen = Seen()
        self._awaited = {OVERVIEW, *PARTS}
        self._overview: Overview | None = None
        self._pace: Throughput | None = None
        self._queue_pace: tuple[QueueBucket, ...] = ()

    def body(self) -> ComposeResult:
        with Horizontal(id="glance"):
            yield TaskCounts()
            yield Pace()
            yield QueuePaces()
        yield self.list
        yield Static(id="recent")

    def on_mount(self) -> None:
        self.query_one("#recent").border_title = " Recent operator actions "

    def wants(self) -> Sequence[Want]:
        beats = ANY_TASK | {Topic.BEATS, Topic.EVENT}
        return (
            Want(name="stale", fetch=lambda source: source.stale_candidates(), touched_by=beats, rest_s=5.0),
            Want(name="workers", fetch=workers_of, touched_by=beats, every_s=5.0, rest_s=2.0),
            Want(name="errors", fetch=lambda source: source.error_summary(HOUR), touched_by=ANY_TASK, rest_s=10.0),
            Want(name="pace", fetch=lambda source: source.throughput(WINDOW, BUCKETS), touched_by=ANY_TASK, rest_s=3.0),
            Want(name="queue pace", fetch=self._fetch_queue_pace, touched_by=ANY_TASK, rest_s=5.0),
            Want(name="audit", fetch=lambda source: source.audit(limit=MOST_ACTIONS), touched_by=beats, rest_s=2.0),
        )

    async def _fetch_queue_pace(self, source: Source) -> tuple[QueueBucket, ...]:
        """Only where there is room to show it."""
        return await source.queue_throughput(WINDOW, BUCKETS) if self.size.width >= ROOMY else ()

    def take(self, name: str, value: object) -> None:
        match name:
            case "overview":
                self._overview = overview = cast("Overview", value)
                self._seen = replace(self._seen, queues=overview.queues)
            case "pace":
                self._pace = cast("Throughput", value)
            case "queue pace":
                self._queue_pace = cast("tuple[QueueBucket, ...]", value)
            case "audit":
                self._show_log(cast("tuple[AuditRow, ...]", value))
            case _ if name in PARTS:
                part: dict[str, Any] = {name: value}
                self._seen = replace(self._seen, **part)
            case _:
                return
        self._awaited.discard(name)
        # Before all is known the cursor would settle on whatever happened to come first.
        if not self._awaited:
            self.list.show(attention(self._seen))
        self.tick()
        self._say()

    def tick(self) -> None:
        now, glyphs = self.desk.clock.now(), self.desk.glyphs
        if self._overview is not None:
            self.query_one(TaskCounts).show(self._overview, now=now, glyphs=glyphs)
        self.query_one(Pace).show(self._overview, self._pace, self._seen.workers, glyphs=glyphs)
        self.query_one(QueuePaces).show(self._queue_pace, now=now, glyphs=glyphs)

    def _show_log(self, rows: tuple[AuditRow, ...]) -> None:
        lines = [safe(log_line(row)) for row in reversed(rows)]
        self.query_one("#recent", Static).update(Content("\n").join(lines or [safe("none yet")]))

    def _say(self) -> None:
        if (seen := self._overview) is None:
            return
        alive = sum(worker.is_alive for worker in self._seen.workers)
        others = "".join(f" {count} {standing}" for standing, count in missing(self._seen.workers))
        flows = seen.workflows.get("RUNNING")
        self.say(
            "" if self.list.rows or self._awaited else "all is well",
            plural(len(seen.queues), "queue"),
            f"workers {alive} up{others}",
            ""
            if flows is None or not flows.number
            else f"flows {number(flows.number, is_capped=flows.is_capped)} running",
            f"data as of {clock(seen.at)}",
        )

    def on_row_list_opened(self) -> None:
        """Show the list behind the line."""
        match self.list.current:
            case Concern(behind=TaskFilter() as wanted):
                self.post_message(TasksWanted(wanted))
            case Concern(behind=UUID() as worker_id):
                self.post_message(WorkerWanted(worker_id))
            case _:
                return


def _columns(glyphs: Glyphs) -> tuple[Column[Concern], ...]:
    signs = {Severity.BAD: Cell(glyphs.bad, Tone.BAD), Severity.WARN: Cell("!", Tone.WARN)}
    tones = {Severity.BAD: Tone.BAD, Severity.WARN: Tone.PLAIN}
    return (
        Column(title="", width=1, cell=lambda concern, _: signs[concern.severity]),
        Column(
            title="NEEDS ATTENTION   Enter opens the list behind a line",
            width=40,
            grows=1,
            cell=lambda concern, _: Cell(concern.text, tones[concern.severity]),
        ),
    )
