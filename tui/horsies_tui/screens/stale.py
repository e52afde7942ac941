"""Stale tasks: what a sweep would do with each and why, silent tasks with their forecasts, and actions on both."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from textual import work
from textual.app import ComposeResult
from textual.widgets import Input, Static

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import SweepOptions, ThresholdSource
from horsies_ops.actions.plan import Selector
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import format_duration, parse_duration
from horsies_ops.reads.tasks import TaskDetail
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.format import format_age, plural, safe, sanitize, short_id
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.model import ProposalFactory, propose_task_action
from horsies_tui.proposals.sweep import (
    StaleCandidate,
    StaleCandidates,
    decision_text,
    evidence_lines,
    load_stale_candidates,
    owner_text,
    propose_sweep,
    sweep_command,
)
from horsies_tui.screens.base import TASK_TOPICS, MainScreen, OpenTask
from horsies_tui.screens.lists import ProposalRunner
from horsies_tui.screens.tasks.table import status_tone
from horsies_tui.theme import Glyph
from horsies_tui.widgets.dialogs import PromptDialog
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

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
        return Cell(f"in {format_age(-over)}", Tone.WARN)
    return Cell(f"+{format_age(over)}", Tone.BAD)


def _decision_cell(candidate: StaleCandidate, now: datetime) -> Cell:
    tone = Tone.WARN if candidate.has_live_owner else _TONES[candidate.task.decision]
    return Cell(decision_text(candidate, now), tone if candidate.due_at is None else Tone.PLAIN)


STALE_COLUMNS: Final[tuple[Column[StaleCandidate], ...]] = (
    Column("ID", 8, lambda row: short_id(row.id)),
    Column("TASK", 11, lambda row: row.task.task_name, grows=3),
    Column("QUEUE", 8, lambda row: row.task.queue_name, grows=1, drop_rank=3),
    Column("STATE", 7, lambda row: Cell(row.task.state, status_tone(row.task.state))),
    Column("SILENT", 6, value_at=lambda row, now: format_age(row.silence(now)), right=True),
    Column("DUE", 8, value_at=_over_threshold_cell, right=True),
    Column("WORKER", 18, value_at=owner_text, tone=Tone.DIM, grows=2, drop_rank=1),
    Column("DECISION", 12, value_at=_decision_cell, grows=1),
    Column(
        "REASON", 14, lambda row: row.task.reason if row.due_at is None else "if silent", tone=Tone.DIM, drop_rank=4
    ),
)


THRESHOLD_SOURCES: Final = {
    ThresholdSource.FLEET: "workers'",
    ThresholdSource.SETTINGS: "settings",
    ThresholdSource.OPTIONS: "this session",
    ThresholdSource.WORKER: "worker's",
}

THRESHOLD_PROMPT: Final = "Stale threshold for this session, such as 90s or 5m (empty: the workers' setting)"


class StaleScreen(MainScreen, scope=ScreenId.STALE):
    """The dry run of a sweep as a list, with the evidence for the row under the cursor below it."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.options = SweepOptions()
        self.candidates: StaleCandidates | None = None
        self.list: RowList[StaleCandidate] = RowList(STALE_COLUMNS, key=lambda candidate: candidate.id, context=context)
        self.proposals = ProposalRunner(self, after_apply=self.list.unmark)
        self._detail: TaskDetail | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="thresholds")
        yield self.list
        yield Pane(name="evidence")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        return (
            # Polled as well: a task going stale sends no notification.
            LiveQuery(
                "stale",
                lambda source: load_stale_candidates(source, self.options),
                self._show,
                topics,
                min_interval_s=1.0,
                poll_s=5.0,
            ),
            LiveQuery("detail", self._fetch_detail, self._show_detail, TASK_TOPICS, min_interval_s=1.0),
        )

    async def _fetch_detail(self, source: DataSource) -> TaskDetail | None:
        current = self.list.current
        return None if current is None else await source.task(current.id)

    def _show_detail(self, detail: TaskDetail | None) -> None:
        self._detail = detail
        self._show_evidence()

    def _show(self, candidates: StaleCandidates) -> None:
        self.candidates = candidates
        stale, silent = candidates.stale, candidates.silent
        listed_ids = {candidate.id for candidate in (*stale, *silent)}
        if vanished := [key for key in self.list.selection.marks if key not in listed_ids]:
            self.list.selection.unmark(vanished)
            # While a preview is open, its own action is the likely cause: no notice then.
            if self.is_current:
                self.notify(f"{plural(len(vanished), 'marked row')} no longer stale")
        limits = candidates.thresholds
        self.list.empty_text = f"""{Glyph.DONE} No stale tasks, and none that missed a heartbeat.
Healthy: this list stays empty. The dashboard names workers that are silent and what they hold.
A running task is stale after {format_age(limits.running)} without a heartbeat, a claimed task after \
{format_age(limits.claimed)}; a sweep then recovers it."""
        heading = Heading(f"{plural(len(silent), 'silent task')}: recovered when due, unless a heartbeat arrives")
        self.list.show([*stale, *([heading, *silent] if silent else [])])
        source = THRESHOLD_SOURCES[limits.source]
        text = f" Limits ({source}): claimed {format_age(limits.claimed)} · running {format_age(limits.running)}"
        self.query_one("#thresholds", Static).update(safe(f"{text} · pending past good_until"))
        self._show_evidence()
        self._update_status()

    def _show_evidence(self) -> None:
        """Show why a sweep would decide as it does for the row under the cursor."""
        current, candidates = self.list.current, self.candidates
        self.query_one("#evidence").display = current is not None
        if current is None or candidates is None:
            return
        # The detail query follows the cursor: until it has run, the detail is that of the previous row.
        record = self._detail.task if self._detail is not None and self._detail.task.id == current.id else None
        lines = evidence_lines(current, record, candidates.maintenance_status, self.context.clock.now())
        self.show_pane("evidence", lines, title=f"Why {short_id(current.id)} {current.task.task_name}")

    def _update_status(self) -> None:
        candidates, marks = self.candidates, self.list.selection.marks
        if candidates is None:
            return
        runs = len(candidates.report.workflows)
        self.set_status(
            f"{len(marks)} marked" if marks else "",
            f"{len(candidates.stale):,} stale",
            f"{len(candidates.silent):,} silent",
            f"{plural(runs, 'workflow run')} to heal" if runs else "",
            *candidates.report.warnings,
            f"ages use the database clock (offset {self.context.clock.offset.total_seconds():+.1f}s)",
        )

    def tick(self) -> None:
        super().tick()
        self._show_evidence()

    def on_row_list_cursor_moved(self) -> None:
        self._show_evidence()
        self.context.queries.refresh("detail")

    def on_row_list_marks_changed(self) -> None:
        self._update_status()

    def on_row_list_opened(self) -> None:
        if (candidate := self.list.current) is not None:
            self.post_message(OpenTask(candidate.id, tuple(row.id for row in self.list.rows)))

    def step_back(self) -> bool:
        if not self.list.selection.marks:
            return False
        self.list.mark("none")
        return True

    def action_mark(self, rows: str) -> None:
        self.list.mark(rows)

    def action_plan_dry(self) -> None:
        """Preview a requeue of the marked rows or, without marks, a sweep."""
        self.proposals.dry_run(self.proposal("requeue" if self.list.selection.marks else "sweep"))

    def proposal(self, verb: str) -> ProposalFactory | None:
        """A sweep, or an action on the selected tasks that includes running ones."""
        if verb == "sweep":
            return partial(propose_sweep, options=self.options)
        if not (selected_ids := self.list.selection.selected):
            return None
        return partial(
            propose_task_action,
            action=Action(verb),
            selector=Selector.of_ids(selected_ids),
            options=ActionOptions(include_running=True),
            cautions=self._cautions(set(selected_ids)),
        )

    def _cautions(self, selected_ids: Collection[UUID]) -> tuple[str, ...]:
        """Warn about tasks that may still be alive."""
        selected = [candidate for candidate in self.list.rows if candidate.id in selected_ids]
        counts = {
            "silent, but the worker still reports: may be blocked and still running": sum(
                candidate.has_live_owner for candidate in selected
            ),
            "not stale yet": sum(candidate.due_at is not None for candidate in selected),
        }
        return tuple(f"{count} {caution}" for caution, count in counts.items() if count)

    async def action_view_limits(self) -> None:
        """Ask for a threshold to use in this session."""
        threshold = self.options.sweep_threshold
        dialog = PromptDialog(THRESHOLD_PROMPT, "" if threshold is None else format_duration(threshold))
        # Awaited, so that keys typed next go into the input and not to this screen.
        await self.app.push_screen(dialog, self._on_threshold_entered)
        dialog.set_focus(dialog.query_one(Input))

    def _on_threshold_entered(self, text: str | None) -> None:
        source = self.context.source
        if text is not None and source is not None:
            self._set_threshold(text, source)

    @work(group="limits", exclusive=True, exit_on_error=False)
    async def _set_threshold(self, text: str, source: DataSource) -> None:
        """Use another threshold, unless it is too short for healthy tasks."""
        try:
            options = SweepOptions(sweep_threshold=parse_duration(text) if text else None)
            # A trial read: thresholds shorter than two heartbeats are rejected.
            await source.stale_candidates(options)
        except (ValueError, HorsiesError) as error:
            message = error.message if isinstance(error, HorsiesError) else error
            self.notify(sanitize(message), severity="error", markup=False)
            return
        self.options = options
        self.context.queries.refresh("stale")

    def action_copy_id(self) -> None:
        self.copy_text("\n".join(map(str, self.list.selection.selected)), "ids")

    def action_copy_cli(self) -> None:
        self.copy_text(f"{sweep_command(self.options)} --dry-run", "the command")
