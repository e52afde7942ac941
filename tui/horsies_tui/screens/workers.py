"""Workers: how loaded they are, what they hold, and which of them are no more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final, cast

from horsies.model.recovery.options import SweepOptions
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.workers import WorkerRow
from horsies_tui.actions import Place, bindings
from horsies_tui.fleet import missing, workers_of
from horsies_tui.fleet_details import WorkerDetail, worker_detail
from horsies_tui.format import short_age
from horsies_tui.messages import TasksWanted
from horsies_tui.screens.main_screen import ANY_TASK
from horsies_tui.screens.sorted_screen import SortedScreen
from horsies_tui.store import Want
from horsies_tui.sweep_proposals import for_sweep
from horsies_tui.widgets.worker_view import WorkerView
from horsies_tui.worker_columns import WORKER_SORTS, worker_columns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from uuid import UUID

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_tui.desk import Desk
    from horsies_tui.proposals import Proposal
    from horsies_tui.source import Source

WINDOWS: Final = tuple(timedelta(minutes=minutes) for minutes in (5, 15, 30, 60, 360, 1440))
"""The stretches of time that the charts can show."""


class WorkersScreen(SortedScreen[WorkerRow]):
    """The list, and below it the load of the worker under the cursor and the tasks that it holds."""

    place = Place.WORKERS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.WORKERS)]
    sorts = WORKER_SORTS

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs, worker_columns(desk.glyphs), key=lambda worker: worker.worker_id)
        self.order = self.order.picked(self.order.by)  # hosts by their names
        self.window = WINDOWS[2]
        self._detail: WorkerDetail | None = None
        self._hides_gone = False
        self._wanted: UUID | None = None

    def body(self) -> ComposeResult:
        yield self.narrowing
        yield self.list
        yield WorkerView(classes="detail")

    def wants(self) -> Sequence[Want]:
        moves = ANY_TASK | {Topic.BEATS, Topic.EVENT}
        return (
            Want(name="workers", fetch=workers_of, touched_by=moves, every_s=5.0, rest_s=1.0),
            Want(name="detail", fetch=self._fetch_detail, touched_by=moves, every_s=5.0, rest_s=1.0),
        )

    async def _fetch_detail(self, source: Source) -> WorkerDetail | None:
        worker = self.list.current
        return None if worker is None else await worker_detail(source, worker.worker_id, self.window)

    def take(self, name: str, value: object) -> None:
        if name == "workers":
            self.show_rows(cast("tuple[WorkerRow, ...]", value))
            self._go_to_wanted()
            self._say()
        elif isinstance(value, WorkerDetail):
            self._detail = value
        self.show_detail()

    def shown(self, rows: Sequence[WorkerRow]) -> Sequence[WorkerRow]:
        return [worker for worker in rows if worker.is_alive] if self._hides_gone else rows

    def show_worker(self, worker_id: UUID) -> None:
        """Put the cursor on this worker, as soon as it is there."""
        self._wanted, self._hides_gone = worker_id, False
        self.show_rows(self._rows)
        self._go_to_wanted()

    def _go_to_wanted(self) -> None:
        line = None if self._wanted is None else self.list.selection.position(self._wanted)
        if line is not None:
            self._wanted = None
            self.list.move_to(line)

    def show_detail(self) -> None:
        self.query_one(WorkerView).show(
            self.list.current, self._detail, now=self.desk.clock.now(), glyphs=self.desk.glyphs
        )

    def _say(self) -> None:
        alive = [worker for worker in self._rows if worker.is_alive]
        busy, slots = sum(each.children_busy for each in alive), sum(each.processes for each in alive)
        hidden = " (hidden)" if self._hides_gone else ""
        self.say(
            f"{len(alive)} up",
            *(f"{count} {standing}{hidden}" for standing, count in missing(self._rows)),
            f"{busy:,} of {slots:,} slots busy",
            f"[ ] window {short_age(self.window)}",
            str(self.order),
        )

    def on_row_list_opened(self) -> None:
        if (worker := self.list.current) is not None:
            self.post_message(TasksWanted(TaskFilter(worker_id=str(worker.worker_id))))

    def action_op_requeue(self) -> None:
        """The sweep, limited to what this worker holds."""
        if (worker := self.list.current) is None:
            self.notify("no worker to sweep after")
            return
        options = SweepOptions(worker_id=worker.worker_id)

        def proposal(source: Source) -> Awaitable[Proposal]:
            return for_sweep(source, options)

        self.propose(proposal)

    def action_view_exclude(self) -> None:
        self._hides_gone = not self._hides_gone
        self.show_rows(self._rows)
        self._say()

    def action_nav_prev(self) -> None:
        self._look_back(max((each for each in WINDOWS if each < self.window), default=WINDOWS[0]))

    def action_nav_next(self) -> None:
        self._look_back(min((each for each in WINDOWS if each > self.window), default=WINDOWS[-1]))

    def _look_back(self, window: timedelta) -> None:
        self.window = window
        self._say()
        self.desk.store.refresh("detail")

    def action_copy_id(self) -> None:
        if (worker := self.list.current) is not None:
            self.copy(str(worker.worker_id), "the id")
