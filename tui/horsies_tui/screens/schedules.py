"""Schedules: next and last runs, outcomes, and pausing, running and backfilling them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final
from zoneinfo import ZoneInfoNotFoundError

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from horsies.model.schedule.decide import ScheduleState, SlotOutcome
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.schedules import ScheduleRow, ScheduleRunRow
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.format import fit, format_age, format_day_time, format_short_age, format_time, plural, safe, short_id
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.model import ProposalFactory
from horsies_tui.proposals.schedules import propose_backfill, propose_schedule_pause_toggle, propose_schedule_run
from horsies_tui.screens.base import TASK_TOPICS
from horsies_tui.screens.lists import ListScreen, ProposalRunner
from horsies_tui.screens.tasks.table import status_tone
from horsies_tui.theme import Glyph
from horsies_tui.widgets.dialogs import BACK_KEYS, Dialog
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Tone

HISTORY_LIMIT: Final = 100
_OUTCOME_GLYPHS: Final = {
    SlotOutcome.FIRED: Glyph.DONE,
    SlotOutcome.SKIPPED: Glyph.SKIPPED,
    SlotOutcome.REFUSED: "!",
    SlotOutcome.WAITING: Glyph.WAITING,
}
LEGEND: Final = f"{Glyph.DONE} fired {Glyph.SKIPPED} skipped ! refused {Glyph.WAITING} waiting"


# Columns


def schedule_text(schedule: ScheduleRow) -> str:
    """Return the pattern, with the time zone unless it is UTC."""
    return schedule.pattern if schedule.timezone == "UTC" else f"{schedule.pattern} {schedule.timezone}"


def ribbon(outcomes: Sequence[str]) -> str:
    """One glyph per slot, the newest at the right."""
    return "".join(_OUTCOME_GLYPHS.get(SlotOutcome(outcome), Glyph.UNKNOWN) for outcome in outcomes)


def _next_run_cell(schedule: ScheduleRow, now: datetime) -> Cell:
    if schedule.is_paused:
        return Cell("paused", Tone.WARN, glyph=Glyph.PAUSED)
    if schedule.state is not ScheduleState.ACTIVE:
        return Cell(schedule.state, Tone.DIM)
    if schedule.next_run_at is None:
        return Cell("-", Tone.DIM)
    due_in = schedule.next_run_at - now
    if due_in >= timedelta():
        return Cell(f"in {format_age(due_in)}")
    late = f"late {format_age(-due_in)}"
    return Cell(late, Tone.BAD, glyph=Glyph.BAD) if schedule.is_overdue else Cell(late, Tone.WARN)


def _result_cell(schedule: ScheduleRow) -> Cell:
    if schedule.last_status is None:
        return Cell("-", Tone.DIM)
    return Cell(schedule.last_error_code or schedule.last_status, status_tone(schedule.last_status))


def _last_run_text(schedule: ScheduleRow, now: datetime) -> str:
    return "never" if schedule.last_run_at is None else f"{format_short_age(now - schedule.last_run_at)} ago"


SCHEDULE_COLUMNS: Final[tuple[Column[ScheduleRow], ...]] = (
    Column("SCHEDULE", 12, lambda row: row.name, grows=2),
    Column("WHEN", 16, schedule_text, grows=2, drop_rank=1),
    Column("NEXT RUN", 12, value_at=_next_run_cell),
    Column("LAST RUN", 8, value_at=_last_run_text, drop_rank=2),
    Column("LAG", 5, lambda row: format_age(row.lag), right=True, drop_rank=4),
    Column("OVERLAP", 7, lambda row: row.overlap, drop_rank=3),
    Column("LAST", 9, _result_cell, grows=1),
    Column("LAST 20", 20, lambda row: ribbon(row.recent), drop_rank=5),
)


# Detail pane


def detail_lines(schedule: ScheduleRow) -> list[str]:
    """Outcomes, last run, call, policies, origin and next slots of one schedule."""
    policy = schedule.policy
    if policy is None:
        return ["its stored definition cannot be read"]
    last = "never run"
    if schedule.last_slot_at is not None:
        result = schedule.last_error_code or schedule.last_status or "unknown"
        last = f"{format_time(schedule.last_slot_at)}  {result}   {short_id(schedule.last_task_id)}"
    policies = [
        f"missed {policy.missed}",
        f"overlap {policy.overlap}",
        f"jitter {policy.jitter_s or 0:g}s",
        f"good for {policy.good_for}" if policy.good_for else "no deadline",
        f"pause after {policy.pause_after_failures} failures" if policy.pause_after_failures else "never pauses itself",
    ]
    following = "   ".join(map(_slot_time, schedule.next_slots(3))) if schedule.fires else ""
    lines = [
        f"last 20   {ribbon(schedule.recent)}   {LEGEND}" if schedule.recent else "",
        f"last run  {last}   lag {format_age(schedule.lag)}",
        f"{'starts' if schedule.is_workflow else 'sends '}    {schedule.target}   runs {schedule.run_count:,}",
        f"policy    {' · '.join(policies)}",
        f"source    {schedule.source}, owner {schedule.owner}, revision {schedule.revision}",
        f"paused    by {schedule.paused_by}: {schedule.pause_reason or '-'}" if schedule.is_paused else "",
        f"next 3    {following}" if following else "",
    ]
    return [line for line in lines if line]


def _slot_time(slot: datetime) -> str:
    """A slot in UTC, with seconds only if it is not on a full minute."""
    return f"{format_day_time(slot)}:{slot.second:02}" if slot.second else format_day_time(slot)


# Dialogs


class LinesDialog(Dialog[None]):
    """Shows lines of text until the user goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,d,enter", "leave", "back")]

    def __init__(self, title: str, lines: Sequence[Content]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="log-dialog"):
            yield Static(Content("\n").join(self._lines))

    def on_mount(self) -> None:
        box = self.query_one("#log-dialog")
        box.border_title, box.border_subtitle = safe(self._title), BACK_KEYS


def history_lines(runs: Sequence[ScheduleRunRow]) -> list[Content]:
    """One line per slot: time, kind, outcome, lag, result, id and reason."""
    return [
        safe(
            f"{fit(_slot_time(run.slot_at), 14)}  {fit(run.kind, 8)}  "
            f"{_OUTCOME_GLYPHS[run.outcome]} {fit(run.outcome, 8)}"
            f"{fit(format_age(run.lag), 7, right=True)}  {fit(run.error_code or run.status or '-', 12)}"
            f"  {short_id(run.task_id or run.workflow_id)}  {run.reason or ''}"
        )
        for run in runs
    ] or [Content("no runs yet")]


def next_lines(schedule: ScheduleRow) -> list[Content]:
    """The next ten slots in UTC and in the schedule's zone."""
    if schedule.policy is None:
        return []
    try:
        zone = schedule.policy.zone
    except ZoneInfoNotFoundError:
        return [safe(f"unknown time zone {schedule.timezone}")]
    slots = schedule.next_slots(10)
    notes = [Content(schedule.why_not_firing)] if schedule.why_not_firing else []
    return notes + [safe(f"{_slot_time(slot)}   {slot.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}") for slot in slots]


class SchedulesScreen(ListScreen[ScheduleRow], scope=ScreenId.SCHEDULES):
    """List of schedules, overdue ones first, with a pane about the one under the cursor."""

    no_rows_text = """There are no schedules.
Define them with @app.scheduled, in horsies.toml under [[schedule.entries]],
or at run time with app.schedules.create. A worker stores and fires them.
Healthy: NEXT RUN is in the future, and every slot of LAST 20 fired."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context, SCHEDULE_COLUMNS, key=lambda schedule: schedule.name)
        self.proposals = ProposalRunner(self)
        self._participants = 0

    def body(self) -> ComposeResult:
        yield self.filter_bar
        yield self.list
        yield Pane(name="schedule", classes="section")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.EVENT}
        return (
            LiveQuery("schedules", self._fetch, self._show_schedules, topics, poll_s=2.0, min_interval_s=1.0),
            LiveQuery("detail", self._fetch_participants, self._show_participants, poll_s=2.0),
        )

    async def _fetch(self, source: DataSource) -> tuple[ScheduleRow, ...]:
        return await source.list_schedules()

    async def _fetch_participants(self, source: DataSource) -> int:
        return await source.schedule_participants()

    def _show_participants(self, count: int) -> None:
        self._participants = count
        self.update_status()

    def _show_schedules(self, rows: tuple[ScheduleRow, ...]) -> None:
        # `due_in` changes with every read; the column computes it, so equal rows are not repainted.
        self.show_rows(replace(row, due_in=timedelta(0)) for row in rows)

    def is_excluded(self, row: ScheduleRow) -> bool:
        return row.state is not ScheduleState.ACTIVE

    def update_status(self) -> None:
        hidden = sum(map(self.is_excluded, self.rows)) if self.hides_excluded else 0
        overdue, paused = sum(row.is_overdue for row in self.rows), sum(row.is_paused for row in self.rows)
        self.set_status(
            plural(len(self.list.rows), "schedule"),
            f"{overdue} overdue" if overdue else "",
            f"{paused} paused" if paused else "",
            f"{hidden} disabled hidden" if hidden else "",
            f"{plural(self._participants, 'scheduler')} running",
            f"clock offset {self.context.clock.offset.total_seconds():+.1f}s",
        )

    def show_detail(self) -> None:
        row = self.list.current
        self.set_label("op.pause", "resume" if row is not None and row.is_paused else "pause")
        lines = list[str] if row is None else partial(detail_lines, row)
        self.show_pane("schedule", lines, title="" if row is None else row.name)

    def on_row_list_opened(self) -> None:
        """Show the history of the schedule under the cursor."""
        if (row := self.list.current) is not None:
            self.run_worker(self._open_history(row.name), group="history", exit_on_error=False)

    async def _open_history(self, name: str) -> None:
        runs = await self.read(lambda source: source.schedule_history(name, limit=HISTORY_LIMIT))
        if runs is not None:
            self.app.push_screen(LinesDialog(f"History of {name}, newest slot first", history_lines(runs)))

    def action_plan_dry(self) -> None:
        """Show the next ten slots."""
        if (row := self.list.current) is not None:
            self.app.push_screen(LinesDialog(f"Next ten slots of {row.name}", next_lines(row)))

    def proposal(self, verb: str) -> ProposalFactory | None:
        row, now = self.list.current, self.context.clock.now()
        if row is None:
            return None
        if verb == "requeue":
            return partial(propose_schedule_run, name=row.name)
        if verb == "backfill":
            return partial(propose_backfill, name=row.name)
        return partial(propose_schedule_pause_toggle, name=row.name, now=now)

    def action_copy_id(self) -> None:
        if (row := self.list.current) is not None:
            self.copy_text(row.name, "the name")
