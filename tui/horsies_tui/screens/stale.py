"""Stale candidates: what a sweep would take and why, what it soon may, and the means to do it or something else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Input, Static

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import SweepOptions, ThresholdSource
from horsies_ops.actions.plan import Selector
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import format_duration, parse_duration
from horsies_ops.reads.tasks import TaskDetail
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, plural, safe, sanitize, short_id
from horsies_tui.keys import Place, bindings
from horsies_tui.proposals import model
from horsies_tui.proposals.model import Proposal
from horsies_tui.proposals.sweep import (
    NEAR_MARGIN,
    StaleCandidate,
    StaleCandidates,
    decision_text,
    evidence_lines,
    load_stale_candidates,
    owner_text,
    propose_sweep,
    sweep_command,
)
from horsies_tui.screens.base import TASK_TOPICS
from horsies_tui.screens.lists import MarkableTaskScreen
from horsies_tui.screens.tasks.table import status_tone
from horsies_tui.widgets.dialogs import PromptDialog
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

# Stale tasks in columns.

_TONES = {
    DecisionKind.REQUEUE: Tone.GOOD,
    DecisionKind.RETRY: Tone.WARN,
    DecisionKind.FAIL: Tone.BAD,
    DecisionKind.EXPIRE: Tone.WARN,
    DecisionKind.HOLD: Tone.DIM,
    DecisionKind.LEAVE: Tone.DIM,
}


def _over_threshold_cell(candidate: StaleCandidate, now: datetime) -> Cell:
    over = candidate.over_threshold(now)
    if over is None:
        return Cell("-", Tone.DIM)
    if over < timedelta(0):
        return Cell(f"-{format_age(-over)}", Tone.DIM)
    return Cell(f"+{format_age(over)}", Tone.BAD)


def _decision_cell(candidate: StaleCandidate, now: datetime) -> Cell:
    tone = Tone.WARN if candidate.has_live_owner else _TONES[candidate.task.decision]
    return Cell(decision_text(candidate, now), Tone.DIM if candidate.is_near_threshold else tone)


STALE_COLUMNS: Final[tuple[Column[StaleCandidate], ...]] = (
    Column(title="ID", width=8, cell=lambda each, _: Cell(short_id(each.id))),
    Column(title="TASK", width=11, grows=3, cell=lambda each, _: Cell(each.task.task_name)),
    Column(title="QUEUE", width=8, grows=1, drop_rank=3, cell=lambda each, _: Cell(each.task.queue_name)),
    Column(title="STATE", width=7, cell=lambda each, _: Cell(each.task.state, status_tone(each.task.state))),
    Column(title="SILENT", width=6, right=True, ticks=True, cell=lambda each, now: Cell(format_age(each.silence(now)))),
    Column(title="OVER", width=7, right=True, ticks=True, cell=_over_threshold_cell),
    Column(
        title="WORKER", width=17, drop_rank=1, ticks=True, cell=lambda each, now: Cell(owner_text(each, now), Tone.DIM)
    ),
    Column(title="VERDICT", width=13, grows=1, ticks=True, cell=_decision_cell),
    Column(title="REASON", width=14, drop_rank=4, cell=lambda each, _: Cell(each.task.reason, Tone.DIM)),
)


THRESHOLD_SOURCES: Final = {
    ThresholdSource.FLEET: "workers'",
    ThresholdSource.SETTINGS: "settings",
    ThresholdSource.OPTIONS: "this session",
    ThresholdSource.WORKER: "worker's",
}

THRESHOLD_PROMPT: Final = (
    "How long may a task be silent, as 90s or 5m? For this session; empty leaves it to the workers."
)


class StaleScreen(MarkableTaskScreen):
    """The list is the dry run of a sweep; below it the evidence for the row under the cursor."""

    place = Place.STALE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.STALE)]

    def __init__(self, context: AppContext, tabs: frozenset[Place]) -> None:
        super().__init__(context, tabs)
        self.options = SweepOptions()
        self.candidates: StaleCandidates | None = None
        self.list: RowList[StaleCandidate] = RowList(
            STALE_COLUMNS, key=lambda each: each.id, now=context.clock.now, glyphs=context.glyphs
        )
        self._detail: TaskDetail | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="limits")
        yield self.list
        yield Static("", id="why")

    def live_queries(self) -> Sequence[LiveQuery]:
        alive = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        return (
            LiveQuery(name="stale", fetch=self._fetch, invalidated_by=alive, min_interval_s=1.0, poll_s=5.0),
            LiveQuery(name="detail", fetch=self._fetch_detail, invalidated_by=TASK_TOPICS, min_interval_s=1.0),
        )

    async def _fetch(self, source: DataSource) -> StaleCandidates:
        return await load_stale_candidates(source, self.options)

    async def _fetch_detail(self, source: DataSource) -> TaskDetail | None:
        current = self.list.current
        return None if current is None else await source.task(current.id)

    def show_result(self, name: str, value: object) -> None:
        match value:
            case StaleCandidates():
                self._show(value)
            case TaskDetail() | None if name == "detail":
                self._detail = value
                self._explain()
            case _:
                return

    def _show(self, found: StaleCandidates) -> None:
        self.candidates = found
        listed = {each.id for each in (*found.stale, *found.near_threshold)}
        if gone := [key for key in self.list.selection.marks if key not in listed]:
            self.list.selection.unmark(gone)
            # Below a preview, it is most likely what was decided there.
            if self.is_current:
                self.notify(f"{plural(len(gone), 'marked row')} no longer stale")
        near = Heading(f"{plural(len(found.near_threshold), 'task')} less than {format_age(NEAR_MARGIN)} from stale")
        self.list.show([*found.stale, *([near, *found.near_threshold] if found.near_threshold else [])])
        limits = found.thresholds
        source = THRESHOLD_SOURCES[limits.source]
        text = f" Limits ({source}): claimed {format_age(limits.claimed)} · running {format_age(limits.running)}"
        self.query_one("#limits", Static).update(safe(f"{text} · pending past good_until"))
        self._explain()
        self._say()

    def _explain(self) -> None:
        """Say what speaks for the verdict on the row under the cursor."""
        current, found, pane = self.list.current, self.candidates, self.query_one("#why", Static)
        if current is None or found is None:
            pane.border_title = ""
            pane.update(safe(_empty_text(found)))
            return
        facts = self._detail.task if self._detail is not None and self._detail.task.id == current.id else None
        lines = evidence_lines(current, facts, found.maintenance_status, self.context.clock.now())
        pane.border_title = safe(f" Why {short_id(current.id)} {current.task.task_name} ", cells=60)
        pane.update(Content("\n").join([safe(line) for line in lines]))

    def _say(self) -> None:
        found, marks = self.candidates, self.list.selection.marks
        if found is None:
            return
        runs = len(found.report.workflows)
        self.set_status(
            f"{len(marks)} marked" if marks else "",
            f"{len(found.stale):,} stale",
            f"{len(found.near_threshold):,} near limit",
            f"{plural(runs, 'workflow')} to heal" if runs else "",
            *found.report.warnings,
            f"ages by the database's clock (offset {self.context.clock.offset.total_seconds():+.1f}s)",
        )

    def tick(self) -> None:
        self.list.tick()
        self._explain()

    def on_row_list_cursor_moved(self) -> None:
        self._explain()
        self.context.queries.refresh("detail")

    def on_row_list_marks_changed(self) -> None:
        self._say()

    def on_row_list_opened(self) -> None:
        if (candidate := self.list.current) is not None:
            self.open_task(candidate.id, [each.id for each in self.list.rows])

    def step_back(self) -> bool:
        if not self.list.selection.marks:
            return False
        self.action_mark_none()
        return True

    def selector(self) -> Selector | None:
        return Selector.of_ids(self.selected_ids) if self.selected_ids else None

    def requeue_or_retry(self) -> Action:
        return Action.REQUEUE

    def proposal_factory(self, action: Action, selector: Selector) -> Callable[[DataSource], Awaitable[Proposal]]:
        """As elsewhere, but running tasks are meant too, and those that may not be dead are pointed out."""
        options, cautions = ActionOptions(include_running=action is not Action.EXPIRE), self._cautions()
        return lambda source: model.propose_task_action(source, action, selector, options, cautions=cautions)

    def _cautions(self) -> tuple[str, ...]:
        chosen = set(self.list.selection.selected)
        meant = [each for each in self.list.rows if each.id in chosen]
        alive, near = sum(each.has_live_owner for each in meant), sum(each.is_near_threshold for each in meant)
        said = {
            "silent though the worker still reports: perhaps blocked, and still at work": alive,
            "not stale yet": near,
        }
        return tuple(f"{count} {what}" for what, count in said.items() if count)

    def action_op_sweep(self) -> None:
        self.propose(self._propose_sweep)

    def action_plan_dry(self) -> None:
        """What requeue would do to the marked rows; where none are marked, what a sweep would do."""
        if self.list.selection.marks:
            super().action_plan_dry()
        else:
            self.dry_run(self._propose_sweep)

    async def _propose_sweep(self, source: DataSource) -> Proposal:
        return await propose_sweep(source, self.options)

    async def action_view_limits(self) -> None:
        """Ask by which limit to judge; the next key is not looked at before there is a line that it can go to."""
        now = self.options.sweep_threshold
        asked = PromptDialog(THRESHOLD_PROMPT, "" if now is None else format_duration(now))
        await self.app.push_screen(asked, self._on_threshold_entered)
        asked.set_focus(asked.query_one(Input))

    def _on_threshold_entered(self, text: str | None) -> None:
        source = self.context.source
        if text is not None and source is not None:
            self._set_threshold(text, source)

    @work(group="limits", exclusive=True, exit_on_error=False)
    async def _set_threshold(self, text: str, source: DataSource) -> None:
        """Judge by another limit from now on, unless it would condemn tasks that are well."""
        try:
            options = SweepOptions(sweep_threshold=parse_duration(text) if text else None)
            await source.stale_candidates(options)
        except (ValueError, HorsiesError) as error:
            why = error.message if isinstance(error, HorsiesError) else error
            self.notify(sanitize(why), severity="error", markup=False)
            return
        self.options = options
        self.context.queries.refresh("stale")

    def action_copy_cli(self) -> None:
        self.copy_text(f"{sweep_command(self.options)} --dry-run", "the command")


def _empty_text(found: StaleCandidates | None) -> str:
    return "" if found is None else " nothing is stale, and nothing is near its limit"
