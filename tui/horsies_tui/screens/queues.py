"""Queues: what waits, what runs, who serves it; and the switch that stops the claiming."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filter import TaskFilter
from horsies_tui.actions import Place, bindings
from horsies_tui.fleet_details import QueueDetail, queue_detail
from horsies_tui.format import number, plural
from horsies_tui.health import QueueHealth, queue_health
from horsies_tui.messages import TasksWanted
from horsies_tui.queue_columns import QUEUE_SORTS, QueueLine, queue_columns
from horsies_tui.queue_proposals import for_queue
from horsies_tui.screens.main_screen import ANY_TASK
from horsies_tui.screens.sorted_screen import SortedScreen
from horsies_tui.store import Want
from horsies_tui.widgets.queue_view import QueueView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_tui.desk import Desk
    from horsies_tui.proposals import Proposal
    from horsies_tui.source import Source


class QueuesScreen(SortedScreen[QueueLine]):
    """The list, and below it more about the queue under the cursor."""

    place = Place.QUEUES
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.QUEUES)]
    sorts = QUEUE_SORTS

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs, queue_columns(desk.glyphs), key=lambda line: line.row.name)
        self._detail: QueueDetail | None = None

    def body(self) -> ComposeResult:
        yield self.narrowing
        yield self.list
        yield QueueView(classes="detail")

    def wants(self) -> Sequence[Want]:
        moves = ANY_TASK | {Topic.EVENT}
        return (
            Want(name="queues", fetch=self._fetch, touched_by=moves, every_s=5.0, rest_s=1.0),
            Want(name="detail", fetch=self._fetch_detail, touched_by=ANY_TASK, rest_s=3.0),
        )

    async def _fetch(self, source: Source) -> tuple[QueueLine, ...]:
        queues = await source.list_queues()
        now = self.desk.clock.now()
        return tuple(QueueLine.of(queue, now) for queue in queues)

    async def _fetch_detail(self, source: Source) -> QueueDetail | None:
        line = self.list.current
        return None if line is None else await queue_detail(source, line.row.name)

    def take(self, name: str, value: object) -> None:
        if name == "queues":
            self.show_rows(cast("tuple[QueueLine, ...]", value))
            self._say()
        elif isinstance(value, QueueDetail):
            self._detail = value
        self.show_detail()

    def show_detail(self) -> None:
        line = self.list.current
        self.query_one(QueueView).show(
            line and line.row, self._detail, now=self.desk.clock.now(), glyphs=self.desk.glyphs
        )

    def _say(self) -> None:
        rows = [line.row for line in self.list.rows]
        ill = [f"{number(count)} {health}" for health in QueueHealth if (count := _count(self.list.rows, health))]
        self.say(plural(len(rows), "queue"), str(self.order), *ill)

    def on_row_list_opened(self) -> None:
        if (line := self.list.current) is not None:
            live = tuple(status for status in TaskStatus if not status.is_terminal)
            self.post_message(TasksWanted(TaskFilter(queues=(line.row.name,), statuses=live)))

    def action_op_pause(self) -> None:
        if (line := self.list.current) is None:
            self.notify("no queue to pause")
            return
        name = line.row.name

        def proposal(source: Source) -> Awaitable[Proposal]:
            return for_queue(source, name, self.desk.clock.now())

        self.propose(proposal)

    def action_copy_id(self) -> None:
        if (line := self.list.current) is not None:
            self.copy(line.row.name, "the name")


def _count(lines: Sequence[QueueLine], health: QueueHealth) -> int:
    return sum(queue_health(line.row) is health for line in lines)
