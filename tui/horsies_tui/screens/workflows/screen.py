"""Workflows: their runs, and of the one under the cursor the live tree, with what can be done to it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from horsies_ops.reads.changes import Topic
from horsies_ops.reads.workflows import ROOTS, WorkflowDetail, WorkflowPage, WorkflowRow
from horsies_tui.data.queries import Want
from horsies_tui.format import plural
from horsies_tui.keys import Place, bindings
from horsies_tui.messages import TaskWanted
from horsies_tui.proposals import workflows
from horsies_tui.screens.base import ANY_TASK
from horsies_tui.screens.lists import ProposingScreen
from horsies_tui.screens.workflows.graph import FlowLine, View, lines_of
from horsies_tui.screens.workflows.panes import NODE_COLUMNS, RUN_COLUMNS, described, titled
from horsies_tui.widgets.filter_bar import RunFilterLine
from horsies_tui.widgets.page import Section
from horsies_tui.widgets.row_list import NEAR, RowList

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_tui.data.context import Desk
    from horsies_tui.data.source import Source
    from horsies_tui.proposals.model import Proposal

PAGE = 100
MOVED = ANY_TASK | {Topic.WORKFLOW}
"""A run goes on when a task of it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was found of the run that was asked for."""

    run_id: UUID | None
    detail: WorkflowDetail | None = None


class FlowsScreen(ProposingScreen):
    """List and tree beside one another; where there is no room for both, Enter and Esc change between them."""

    place = Place.FLOWS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.FLOWS)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.runs: RowList[WorkflowRow] = RowList(
            RUN_COLUMNS, key=lambda run: run.id, now=desk.clock.now, glyphs=desk.glyphs, id="runs"
        )
        self.steps: RowList[FlowLine] = RowList(
            NODE_COLUMNS, key=lambda line: line.key, now=desk.clock.now, glyphs=desk.glyphs, id="nodes"
        )
        self._looked = Looked(run_id=None)
        self.view = View()
        self._path: tuple[UUID, ...] = ()
        """Runs that were entered from elsewhere or from one another; the last is looked at, not the cursor's."""
        self._read_id: UUID | None = None
        """The run of the list whose tree is read. It stays that one, also when the list moves on or loses it."""
        self._wanted = PAGE
        self._has_more = False

    def body(self) -> ComposeResult:
        yield RunFilterLine(prompt=self.desk.glyphs.prompt)
        with Horizontal(id="flows"):
            yield self.runs
            with Vertical(id="flow"):
                yield Static("", id="flow-head")
                yield self.steps
        yield Section(name="flow-node")

    @property
    def filter(self) -> RunFilterLine:
        return self.query_one(RunFilterLine)

    def on_mount(self) -> None:
        self.runs.focus()

    def wants(self) -> Sequence[Want]:
        return (
            Want(name="runs", fetch=self._fetch_runs, touched_by=MOVED, rest_s=1.0),
            Want(name="run", fetch=self._fetch_run, touched_by=MOVED, rest_s=0.5),
        )

    async def _fetch_runs(self, source: Source) -> WorkflowPage:
        return await source.list_workflows(self.filter.filter, limit=self._wanted)

    async def _fetch_run(self, source: Source) -> Looked:
        wanted = self.run_id
        return Looked(run_id=wanted, detail=None if wanted is None else await source.workflow(wanted))

    @property
    def detail(self) -> WorkflowDetail | None:
        """The run whose tree is drawn."""
        return self._looked.detail

    @property
    def run_id(self) -> UUID | None:
        """The run that is looked at, and that an action is about."""
        if self._path:
            return self._path[-1]
        if self._read_id is not None and not self.runs.has_focus:
            return self._read_id
        return self.runs.current.id if self.runs.current is not None else None

    def take(self, name: str, value: object) -> None:  # noqa: ARG002  # told apart by what they are
        if isinstance(value, WorkflowPage):
            self._has_more = value.next is not None
            # Ages are reckoned when they are drawn.
            self.runs.show([replace(run, age=timedelta(0)) for run in value.workflows])
            self.filter.say(f"{plural(len(value.workflows), 'run')}{' and more' if self._has_more else ''} ")
            self._say()
        elif isinstance(value, Looked) and value.run_id == self.run_id:
            self._take_run(value)

    def _take_run(self, looked: Looked) -> None:
        is_another = looked.run_id != self._looked.run_id
        if is_another:
            # What was folded of the last one, and where the cursor was in it, says nothing of this one.
            self.view = View(is_layers=self.view.is_layers, is_only_lost=self.view.is_only_lost)
        self._looked = looked
        self._draw()
        if is_another:
            self.steps.move_to(0)

    def _draw(self) -> None:
        desk = self.desk
        lines = () if self.detail is None else lines_of(self.detail, self.view, desk.glyphs)
        self.steps.show(lines)
        self._draw_head()
        self._describe()
        self._say()

    def _draw_head(self) -> None:
        self.query_one("#flow-head", Static).update(
            titled(self.detail, self.desk.clock.now(), self.desk.glyphs, is_entered=bool(self._path))
        )

    def _describe(self) -> None:
        node = self.query_one("#flow-node", Section)
        title, lines = described(self.steps.current, self.desk.glyphs)
        node.show(lines, title=title)

    def _say(self) -> None:
        if not self.runs.rows:
            self.say("no workflows yet" if self.filter.is_empty else "nothing matches")
        elif self._is_reading:
            self.say("h l fold", "b layers", "x only what failed", "Esc back to the list")
        else:
            self.say(plural(len(self.runs.rows), "run"), "more below" if self._has_more else "to the end")

    def tick(self) -> None:
        self.runs.tick()
        self.steps.tick()
        self._draw_head()

    @property
    def _is_reading(self) -> bool:
        return self.has_class("-reading")

    def _read(self, *, is_reading: bool) -> None:
        """Go to the tree, or back to the list."""
        self.set_class(is_reading, "-reading")
        self._pin(self._read_id if is_reading else None)
        (self.steps if is_reading else self.runs).focus()
        self._say()

    def _pin(self, run_id: UUID | None) -> None:
        """Go on with this run of the list, or with whichever the cursor is on, once one is read."""
        current = self.runs.current
        is_read = self._is_reading and not self._path
        self._read_id = current.id if run_id is None and is_read and current is not None else run_id

    def on_row_list_cursor_moved(self) -> None:
        self._describe()
        if self._looked.run_id != self.run_id:
            self.desk.store.refresh("run")

    def on_row_list_edge_neared(self, message: RowList.EdgeNeared) -> None:
        is_longest = self._wanted >= self.desk.settings.max_rows
        # The tree tells of its edges too.
        is_of_list = self.runs.selection.line >= len(self.runs.rows) - NEAR
        if message.older and is_of_list and self._has_more and not is_longest:
            self._wanted += PAGE
            self.desk.store.refresh("runs")

    def on_row_list_opened(self) -> None:
        if not self.steps.has_focus:
            self._read(is_reading=True)
        elif (line := self.steps.current) is not None:
            self._open(line)

    def _open(self, line: FlowLine) -> None:
        """Follow the line: to a task, into a run below, to where a node stands, or to what is folded."""
        first = line.nodes[0]
        if line.is_pointer:
            self._go_to(first.index)
        elif len(line.nodes) > 1 or line.key in self.view.folded:
            self.action_nav_right()
        elif first.sub_workflow_id is not None:
            self.show_run(first.sub_workflow_id)
        elif first.task_id is not None and self.detail is not None:
            self.post_message(TaskWanted(first.task_id, [node.task_id for node in self.detail.nodes if node.task_id]))
        else:
            self.notify("it has no task yet")

    def _go_to(self, index: int) -> None:
        if (line := self.steps.selection.position(index)) is not None:
            self.steps.move_to(line)

    def show_run(self, workflow_id: UUID) -> None:
        """Look at this run, wherever it stands in the list; Esc leads back."""
        self._path = (*self._path, workflow_id)
        self._read(is_reading=True)
        self.desk.store.refresh("run")

    def step_back(self) -> bool:
        """Out of the filter; out of a run that was entered; from the tree to the list; then the filter itself."""
        if self.filter.has_focus_within:
            self.runs.focus()
        elif self._path:
            self._path = self._path[:-1]
            self._pin(self._read_id)
            self.desk.store.refresh("run")
        elif self._is_reading:
            self._read(is_reading=False)
            self.desk.store.refresh("run")
        elif not self.filter.is_empty:
            self.action_filter_clear()
        else:
            return False
        return True

    def on_run_filter_line_changed(self) -> None:
        self._wanted, self._path = PAGE, ()
        self.desk.store.refresh("runs")

    def on_run_filter_line_left(self) -> None:
        self.runs.focus()

    def action_filter_edit(self) -> None:
        self.remove_class("-reading")
        self._pin(None)
        self.filter.edit()

    def action_filter_clear(self) -> None:
        self.filter.show(ROOTS)
        self.runs.focus()

    def _look(self, view: View) -> None:
        self.view = view
        self._draw()

    def action_view_layers(self) -> None:
        self._look(replace(self.view, is_layers=not self.view.is_layers))

    def action_view_exclude(self) -> None:
        self._look(replace(self.view, is_only_lost=not self.view.is_only_lost))

    def action_view_fold(self) -> None:
        """Fold whatever has something below it; the second time show it again."""
        foldable = frozenset(line.key for line in self.steps.rows if line.has_below)
        self._look(replace(self.view, folded=frozenset() if self.view.folded else foldable, opened=frozenset()))

    def action_nav_left(self) -> None:
        """Fold what is below; where nothing is, go to what stands above."""
        line = self.steps.current
        if line is None:
            return
        above = None if line.above is None else self.steps.selection.position(line.above)
        if line.has_below and line.key not in self.view.folded:
            self._look(self.view.fold(line))
        elif above is not None:
            self.steps.move_to(above)

    def action_nav_right(self) -> None:
        if (line := self.steps.current) is not None:
            self._look(self.view.unfold(line))

    def action_copy_id(self) -> None:
        """Of the run; in the tree, of the task."""
        line = self.steps.current if self.steps.has_focus else None
        task_id = line.nodes[0].task_id if line is not None else None
        identity = task_id or self.run_id
        if identity is not None:
            self.copy(str(identity), "the id")

    def action_copy_cli(self) -> None:
        if self.run_id is not None:
            self.copy(shlex.join(["horsies", "workflow", "show", str(self.run_id)]), "the command")

    def action_op_requeue(self) -> None:
        self._change(workflows.retrying)

    def action_op_pause(self) -> None:
        self._change(workflows.turning)

    def action_op_cancel(self) -> None:
        self._change(workflows.cancelling)

    def _change(self, proposed: Callable[[Source, UUID], Awaitable[Proposal]]) -> None:
        """Preview a change of the run that is looked at; which one that is, is settled here."""
        run_id = self.run_id
        if run_id is None:
            self.notify("no run to act on")
            return

        def proposal(source: Source) -> Awaitable[Proposal]:
            return proposed(source, run_id)

        self.propose(proposal)
