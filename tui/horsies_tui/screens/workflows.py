"""Workflows: the list of runs and the live tree of one run; retrying, pausing and cancelling runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content

from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowPage, WorkflowRecord, WorkflowRow
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.format import format_age, format_elapsed, format_short_age, format_time, plural, safe, short_id
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.model import ProposalFactory, propose_run_action
from horsies_tui.screens.base import NOTHING_MATCHES, TASK_TOPICS, MainScreen, OpenTask
from horsies_tui.screens.lists import ProposalRunner
from horsies_tui.screens.run_graph import NODE_TONES, GraphView, NodeLine, graph_lines, join_text, legend
from horsies_tui.theme import Glyph, bar
from horsies_tui.widgets.filter_bar import RUN_FILTER, FilterBar
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import EDGE_ROWS, Cell, Column, RowList, Tone

PAGE_SIZE = 100
RUN_TOPICS = TASK_TOPICS | {Topic.WORKFLOW}
"""A run changes when one of its tasks does."""
NO_RUNS_TEXT: Final = """No workflow runs yet.
A run appears here when it is started.
Healthy: RUNNING runs become COMPLETED; failed and paused ones wait for you."""

# Header of a run and detail pane of a node

_HEADER_COLOURS = {
    WorkflowStatus.RUNNING: "$text-primary",
    WorkflowStatus.PAUSED: "$text-warning",
    WorkflowStatus.COMPLETED: "$text-success",
    WorkflowStatus.FAILED: "$text-error",
}


def run_header(detail: WorkflowDetail, now: datetime, *, is_entered: bool) -> list[Content]:
    """Return two lines: name, id and status of the run; its progress, error policy and duration."""
    run = detail.run
    back = f"{Glyph.BACK} " if is_entered else ""
    colour = _HEADER_COLOURS.get(WorkflowStatus(run.status), "dim")
    first = Content.assemble(
        safe(f" {back}{run.name} ", "bold"), (f"{short_id(run.id)} ", "dim"), (run.status, f"bold {colour}")
    )
    return [first, Content.assemble(" ", *_progress(detail), safe(_run_summary(run, now), "dim"))]


HEADER_PROGRESS_WIDTH: Final = 20
_PROGRESS_COLOURS: Final = {
    WorkflowTaskStatus.COMPLETED: "$text-success",
    WorkflowTaskStatus.FAILED: "$text-error",
    WorkflowTaskStatus.SKIPPED: "$text-warning",
    WorkflowTaskStatus.RUNNING: "$text-primary",
}


def _progress(detail: WorkflowDetail) -> Iterator[tuple[str, str]]:
    """Draw a bar of the nodes by status, then their number."""
    counts, total, width, ended, drawn = detail.counts, len(detail.nodes), HEADER_PROGRESS_WIDTH, 0, 0
    for status, colour in _PROGRESS_COLOURS.items():
        ended += counts.get(status, 0)
        # Rounded at the ends of the parts, so that together they are as long as the bar.
        end = round(width * ended / total) if total else 0
        # Full only where nodes completed, as in the list: without colours, a failed run would look finished.
        glyph = Glyph.FULL if status is WorkflowTaskStatus.COMPLETED else Glyph.EMPTY
        yield glyph * (end - drawn), colour
        drawn = end
    yield Glyph.EMPTY * (width - drawn), "dim"
    yield f" {counts.get(WorkflowTaskStatus.COMPLETED, 0)}/{total} done   ", ""


def _run_summary(run: WorkflowRecord, now: datetime) -> str:
    parts = [_duration_text(run, now), f"on error: {run.on_error}"]
    if run.generation > 1:
        parts.append(f"retried {plural(run.generation - 1, 'time')}")
    if run.parent_id is not None:
        parts.append(f"sub-workflow of {short_id(run.parent_id)}")
    if run.error_code is not None:
        parts.append(run.error_code)
    return "   ".join(parts)


def _duration_text(run: WorkflowRecord, now: datetime) -> str:
    started_at = run.started_at or run.created_at
    if run.completed_at is not None:
        return f"took {format_elapsed(run.completed_at - started_at)}"
    if run.paused_at is not None:
        return f"paused {format_age(now - run.paused_at)} ago"
    return f"for {format_age(now - started_at)}"


def node_details(line: NodeLine | None) -> tuple[str, list[str]]:
    """Return the title and lines of the node's detail pane."""
    if line is None:
        return "", []
    first = line.nodes[0]
    if len(line.nodes) > 1 and not line.is_pointer:
        return f"{len(line.nodes)} × {first.name}   {first.status}", [_error_text(first), "l expands", legend()]
    return f"[{first.index}] {first.name}{join_text(first)}   {_target_text(first)}   {first.status}", [
        _error_text(first) or line.note or _times_text(first),
        _settings_text(first),
        legend(),
    ]


def _target_text(node: NodeRow) -> str:
    if node.sub_workflow_id is not None:
        return f"run {short_id(node.sub_workflow_id)}"
    return "no task" if node.task_id is None else f"task {short_id(node.task_id)}"


def _error_text(node: NodeRow) -> str:
    return f"{node.error_code}: {node.error_message or ''}".rstrip(": ") if node.error_code else ""


def _times_text(node: NodeRow) -> str:
    if node.started_at is None:
        return ""
    finished = f"  finished {format_time(node.completed_at)}" if node.completed_at is not None else ""
    return f"started {format_time(node.started_at)}{finished}"


def _settings_text(node: NodeRow) -> str:
    parts = [
        f"node id {node.node_id}",
        f"queue {node.queue}" if node.queue else "",
        f"prio {node.priority}" if node.priority is not None else "",
        "runs even if dependencies failed" if node.allow_failed_deps else "",
    ]
    return "  ".join(part for part in parts if part)


# Columns

RUN_TONES: Final = {
    WorkflowStatus.PENDING: Tone.PLAIN,
    WorkflowStatus.RUNNING: Tone.BUSY,
    WorkflowStatus.PAUSED: Tone.WARN,
    WorkflowStatus.COMPLETED: Tone.DIM,
    WorkflowStatus.FAILED: Tone.BAD,
    WorkflowStatus.CANCELLED: Tone.DIM,
    WorkflowStatus.EXPIRED: Tone.WARN,
}


def run_tone(status: str) -> Tone:
    return RUN_TONES.get(WorkflowStatus(status), Tone.PLAIN)


PROGRESS_WIDTH: Final = 6


def _progress_cell(run: WorkflowRow) -> Cell:
    tone = Tone.BAD if run.failed else run_tone(run.status)
    return Cell(bar(run.done, run.total, PROGRESS_WIDTH), tone)


def _node_cell(line: NodeLine) -> Cell:
    return Cell(f"{line.indent}{line.text}", Tone.DIM if line.is_pointer else NODE_TONES[line.status])


def _note_cell(line: NodeLine, now: datetime) -> Cell:
    started_at = line.nodes[0].started_at
    if line.status == WorkflowTaskStatus.RUNNING and started_at is not None and not line.is_pointer:
        return Cell(format_age(now - started_at), Tone.BUSY)
    return Cell(line.note, NODE_TONES[line.status])


RUN_COLUMNS: Final[tuple[Column[WorkflowRow], ...]] = (
    Column("WORKFLOW", 10, lambda run: run.name, grows=3),
    Column("ID", 8, lambda run: short_id(run.id), tone=Tone.DIM),
    Column("STATUS", 9, lambda run: Cell(run.status, run_tone(run.status))),
    Column("", PROGRESS_WIDTH, _progress_cell, drop_rank=2),
    Column("DONE", 7, lambda run: f"{run.done}/{run.total}", right=True, drop_rank=1),
    Column("FAIL", 5, lambda run: f"{run.failed:,}" if run.failed else "", tone=Tone.BAD, right=True, drop_rank=3),
    Column("AGE", 4, value_at=lambda run, now: format_short_age(now - run.created_at), right=True),
    Column("ERROR", 14, lambda run: run.error_code or "", tone=Tone.BAD, grows=1, drop_rank=4),
)

NODE_COLUMNS: Final[tuple[Column[NodeLine], ...]] = (
    Column("NODE", 30, _node_cell, grows=3),
    Column("", 19, value_at=_note_cell, grows=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """The result of reading one run; `detail` is None if it does not exist."""

    run_id: UUID | None
    detail: WorkflowDetail | None = None


class WorkflowsScreen(MainScreen, scope=ScreenId.WORKFLOWS):
    """Run list and tree side by side; on narrow terminals Enter and Esc switch between them."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.run_list: RowList[WorkflowRow] = RowList(
            RUN_COLUMNS, key=lambda run: run.id, context=context, follows_top=True, holds_place=True, id="runs"
        )
        self.node_list: RowList[NodeLine] = RowList(
            NODE_COLUMNS, key=lambda line: line.key, context=context, id="nodes"
        )
        self.filter_bar = FilterBar(RUN_FILTER)
        self._loaded_run = LoadedRun(run_id=None)
        self.view = GraphView()
        self.proposals = ProposalRunner(self)
        self._entered_run_ids: tuple[UUID, ...] = ()
        """Stack of runs opened from another screen or as a sub-workflow; the last one is shown."""
        self._pinned_run_id: UUID | None = None
        """The listed run whose tree is open; it stays open when the list changes."""
        self._run_limit = PAGE_SIZE
        self._has_more = False

    def body(self) -> ComposeResult:
        yield self.filter_bar
        with Horizontal(id="workflows"):
            yield self.run_list
            with Vertical(id="run-pane"):
                yield Pane(name="run-header")
                yield self.node_list
        yield Pane(name="node-detail", classes="section")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        return (
            LiveQuery(
                "runs",
                lambda source: source.list_workflows(self.filter_bar.filter, limit=self._run_limit),
                self._show_runs,
                RUN_TOPICS,
                min_interval_s=1.0,
            ),
            LiveQuery("run", self._fetch_run, self._show_loaded_run, RUN_TOPICS, min_interval_s=0.5),
        )

    async def _fetch_run(self, source: DataSource) -> LoadedRun:
        # Copied: the cursor may move to another run during the read.
        run_id = self.run_id
        return LoadedRun(run_id=run_id, detail=None if run_id is None else await source.workflow(run_id))

    @property
    def detail(self) -> WorkflowDetail | None:
        """The run whose tree is drawn."""
        return self._loaded_run.detail

    @property
    def run_id(self) -> UUID | None:
        """The run to show, and the target of actions."""
        if self._entered_run_ids:
            return self._entered_run_ids[-1]
        # While the list has the focus, the tree beside it follows the list's cursor.
        if self._pinned_run_id is not None and not self.run_list.has_focus:
            return self._pinned_run_id
        return self.run_list.current.id if self.run_list.current is not None else None

    def _show_runs(self, page: WorkflowPage) -> None:
        self._has_more = page.next is not None
        self.run_list.empty_text = NO_RUNS_TEXT if self.filter_bar.is_empty else NOTHING_MATCHES
        # The age column computes ages itself; without this, every read would repaint all rows.
        self.run_list.show([replace(run, age=timedelta(0)) for run in page.workflows])
        self.filter_bar.set_status(f"{plural(len(page.workflows), 'run')}{' and more' if self._has_more else ''} ")
        self._update_status()

    def _show_loaded_run(self, loaded: LoadedRun) -> None:
        # A read of the previous run may end after the cursor moved to another.
        if loaded.run_id != self.run_id:
            return
        is_another_run = loaded.run_id != self._loaded_run.run_id
        if is_another_run:
            # Folded nodes and the cursor position belong to the previous run.
            self.view = GraphView(shows_layers=self.view.shows_layers, shows_only_failed=self.view.shows_only_failed)
        self._loaded_run = loaded
        self._draw()
        if is_another_run:
            self.node_list.move_to(0)

    def _draw(self) -> None:
        is_paused = self.detail is not None and self.detail.run.status == WorkflowStatus.PAUSED
        self.set_label("op.pause", "resume" if is_paused else "pause")
        lines = () if self.detail is None else graph_lines(self.detail, self.view)
        self.node_list.show(lines)
        self._draw_header()
        self._show_node()
        self._update_status()

    def _draw_header(self) -> None:
        if (detail := self.detail) is None:
            self.show_pane("run-header", [])
        else:
            now, is_entered = self.context.clock.now(), bool(self._entered_run_ids)
            self.show_pane("run-header", partial(run_header, detail, now, is_entered=is_entered))

    def _show_node(self) -> None:
        title, lines = node_details(self.node_list.current)
        self.show_pane("node-detail", lines, title=title)

    def _update_status(self) -> None:
        if not self.run_list.rows:
            self.set_status("no workflows yet" if self.filter_bar.is_empty else "nothing matches")
        elif self._is_tree_open:
            self.set_status("h l fold", "b layers", "x hide healthy", "Esc back to the list")
        else:
            extent = "more below" if self._has_more else "no more below"
            above = self.run_list.rows_above
            newer = f"{above:,} newer, g follows" if above else ""
            self.set_status(plural(len(self.run_list.rows), "run"), extent, newer)

    def tick(self) -> None:
        super().tick()
        self._draw_header()

    @property
    def _is_tree_open(self) -> bool:
        return self.has_class("-tree-open")

    def _open_tree(self, *, is_open: bool) -> None:
        """Switch to the tree, or back to the list."""
        self.set_class(is_open, "-tree-open")
        self._pin(self._pinned_run_id if is_open else None)
        (self.node_list if is_open else self.run_list).focus()
        self._update_status()

    def _pin(self, run_id: UUID | None) -> None:
        """Pin this run; None pins the run under the cursor if its tree is open, else unpins."""
        current = self.run_list.current
        follows_cursor = self._is_tree_open and not self._entered_run_ids
        self._pinned_run_id = current.id if run_id is None and follows_cursor and current is not None else run_id

    def on_row_list_cursor_moved(self) -> None:
        self._show_node()
        self._update_status()
        # New runs move the cursor's run towards the end; beyond it, the cursor would be on another run.
        self._load_more_near_end()
        # Both lists post this message; moving in the tree needs no query.
        if self._loaded_run.run_id != self.run_id:
            self.context.queries.refresh("run")

    def _load_more_near_end(self) -> None:
        is_full = self._run_limit >= self.context.settings.max_rows
        if self.run_list.selection.cursor_index >= self._run_limit - EDGE_ROWS and not is_full:
            self._run_limit += PAGE_SIZE
            self.context.queries.refresh("runs")

    def on_row_list_opened(self) -> None:
        if not self.node_list.has_focus:
            self._open_tree(is_open=True)
        elif (line := self.node_list.current) is not None:
            self._open_node(line)

    def _open_node(self, line: NodeLine) -> None:
        """Go to the referenced node, unfold the line, or open its sub-workflow or task."""
        first = line.nodes[0]
        if line.is_pointer:
            if (target := self.node_list.selection.index_of(first.index)) is not None:
                self.node_list.move_to(target)
        elif len(line.nodes) > 1 or line.key in self.view.folded:
            self.action_nav_right()
        elif first.sub_workflow_id is not None:
            self.show_run(first.sub_workflow_id)
        elif first.task_id is not None and self.detail is not None:
            sibling_ids = tuple(node.task_id for node in self.detail.nodes if node.task_id)
            self.post_message(OpenTask(first.task_id, sibling_ids))
        else:
            self.notify("this node has no task yet")

    def show_run(self, run_id: UUID) -> None:
        """Show this run, whether or not it is in the list; Esc goes back."""
        self._entered_run_ids = (*self._entered_run_ids, run_id)
        self._open_tree(is_open=True)
        self.context.queries.refresh("run")

    def step_back(self) -> bool:
        """Leave the filter bar, then an entered run, then the tree, then clear the filter."""
        if self.filter_bar.has_focus_within or not self._is_tree_open:
            return self.filter_bar.step_back()
        if self._entered_run_ids:
            self._entered_run_ids = self._entered_run_ids[:-1]
            self._pin(self._pinned_run_id)
            self.context.queries.refresh("run")
        else:
            self._open_tree(is_open=False)
            self.context.queries.refresh("run")
        return True

    def on_filter_bar_changed(self) -> None:
        # The new list replaces what was opened from the old one.
        self._run_limit, self._entered_run_ids = PAGE_SIZE, ()
        self.run_list.move_to(0)
        self.context.queries.refresh("runs")

    def action_filter_edit(self) -> None:
        self.remove_class("-tree-open")
        self._pin(None)
        super().action_filter_edit()

    def _set_view(self, view: GraphView) -> None:
        self.view = view
        self._draw()

    def action_view_layers(self) -> None:
        self._set_view(replace(self.view, shows_layers=not self.view.shows_layers))

    def action_view_exclude(self) -> None:
        self._set_view(replace(self.view, shows_only_failed=not self.view.shows_only_failed))

    def action_view_fold(self) -> None:
        """Fold all nodes with children, or unfold everything."""
        foldable = frozenset(line.key for line in self.node_list.rows if line.has_children)
        self._set_view(replace(self.view, folded=frozenset() if self.view.folded else foldable, expanded=frozenset()))

    def action_nav_left(self) -> None:
        """Fold the node or, if there is nothing to fold, go to its parent."""
        line = self.node_list.current
        if line is None:
            return
        parent = None if line.parent_key is None else self.node_list.selection.index_of(line.parent_key)
        if line.has_children and line.key not in self.view.folded:
            self._set_view(self.view.fold(line))
        elif parent is not None:
            self.node_list.move_to(parent)

    def action_nav_right(self) -> None:
        if (line := self.node_list.current) is not None:
            self._set_view(self.view.unfold(line))

    def action_copy_id(self) -> None:
        """Copy the run id; in the tree, the task id of the node."""
        line = self.node_list.current if self.node_list.has_focus else None
        task_id = line.nodes[0].task_id if line is not None else None
        copied_id = task_id or self.run_id
        if copied_id is not None:
            self.copy_text(str(copied_id), "the id")

    def action_copy_cli(self) -> None:
        if self.run_id is not None:
            self.copy_text(shlex.join(["horsies", "workflow", "show", str(self.run_id)]), "the command")

    def proposal(self, verb: str) -> ProposalFactory | None:
        """A change of the run shown now, even if another one is selected meanwhile."""
        return self.run_id and partial(propose_run_action, verb=verb, workflow_id=self.run_id)
