"""Stale candidates: what a sweep would take and why, what it soon may, and the means to do it or something else."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from textual import work
from textual.content import Content
from textual.widgets import Input, Static

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.recovery.decision import Decision
from horsies.model.recovery.fleet import Source as Origin
from horsies.model.recovery.fleet import SweepOptions
from horsies_ops.actions.plan import Selector
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import duration_text, parse_duration
from horsies_ops.reads.tasks import TaskDetail
from horsies_tui.data.queries import Want
from horsies_tui.format import age, clean, plural, safe, short_id
from horsies_tui.keys import Place, bindings
from horsies_tui.proposals import model
from horsies_tui.proposals.sweep import NEAR, Candidate, Staleness, command, for_sweep, owner, staleness, verdict, why
from horsies_tui.screens.base import ANY_TASK
from horsies_tui.screens.lists import MarkingScreen
from horsies_tui.screens.tasks.table import tone_of
from horsies_tui.widgets.dialogs import AskDialog
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_tui.data.context import Desk
    from horsies_tui.data.source import Source
    from horsies_tui.proposals.model import Proposal


# Stale tasks in columns.

_TONES = {
    Decision.REQUEUE: Tone.GOOD,
    Decision.RETRY: Tone.WARN,
    Decision.FAIL: Tone.BAD,
    Decision.EXPIRE: Tone.WARN,
    Decision.HOLD: Tone.DIM,
    Decision.LEAVE: Tone.DIM,
}


def _over(candidate: Candidate, now: datetime) -> Cell:
    over = candidate.over(now)
    if over is None:
        return Cell("-", Tone.DIM)
    if over < timedelta(0):
        return Cell(f"-{age(-over)}", Tone.DIM)
    return Cell(f"+{age(over)}", Tone.BAD)


def _verdict(candidate: Candidate, now: datetime) -> Cell:
    tone = Tone.WARN if candidate.is_alive else _TONES[candidate.task.decision]
    return Cell(verdict(candidate, now), Tone.DIM if candidate.is_near else tone)


STALE_COLUMNS: Final[tuple[Column[Candidate], ...]] = (
    Column(title="ID", width=8, cell=lambda each, _: Cell(short_id(each.id))),
    Column(title="TASK", width=11, grows=3, cell=lambda each, _: Cell(each.task.task_name)),
    Column(title="QUEUE", width=8, grows=1, rank=3, cell=lambda each, _: Cell(each.task.queue_name)),
    Column(title="STATE", width=7, cell=lambda each, _: Cell(each.task.state, tone_of(each.task.state))),
    Column(title="SILENT", width=6, right=True, ticks=True, cell=lambda each, now: Cell(age(each.silence(now)))),
    Column(title="OVER", width=7, right=True, ticks=True, cell=_over),
    Column(title="WORKER", width=17, rank=1, ticks=True, cell=lambda each, now: Cell(owner(each, now), Tone.DIM)),
    Column(title="VERDICT", width=13, grows=1, ticks=True, cell=_verdict),
    Column(title="REASON", width=14, rank=4, cell=lambda each, _: Cell(each.task.reason, Tone.DIM)),
)


WHOSE: Final = {
    Origin.FLEET: "workers'",
    Origin.SETTINGS: "settings",
    Origin.OPTIONS: "this session",
    Origin.WORKER: "worker's",
}

LIMIT: Final = "How long may a task be silent, as 90s or 5m? For this session; empty leaves it to the workers."


class StaleScreen(MarkingScreen):
    """The list is the dry run of a sweep; below it the evidence for the row under the cursor."""

    place = Place.STALE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.STALE)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.options = SweepOptions()
        self.found: Staleness | None = None
        self.list: RowList[Candidate] = RowList(
            STALE_COLUMNS, key=lambda each: each.id, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._detail: TaskDetail | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="limits")
        yield self.list
        yield Static("", id="why")

    def wants(self) -> Sequence[Want]:
        alive = ANY_TASK | {Topic.BEATS, Topic.EVENT}
        return (
            Want(name="stale", fetch=self._fetch, touched_by=alive, rest_s=1.0, every_s=5.0),
            Want(name="detail", fetch=self._fetch_detail, touched_by=ANY_TASK, rest_s=1.0),
        )

    async def _fetch(self, source: Source) -> Staleness:
        return await staleness(source, self.options)

    async def _fetch_detail(self, source: Source) -> TaskDetail | None:
        current = self.list.current
        return None if current is None else await source.task(current.id)

    def take(self, name: str, value: object) -> None:
        match value:
            case Staleness():
                self._show(value)
            case TaskDetail() | None if name == "detail":
                self._detail = value
                self._explain()
            case _:
                return

    def _show(self, found: Staleness) -> None:
        self.found = found
        listed = {each.id for each in (*found.stale, *found.near)}
        if gone := [key for key in self.list.selection.marks if key not in listed]:
            self.list.selection.unmark(gone)
            # Below a preview, it is most likely what was decided there.
            if self.is_current:
                self.notify(f"{plural(len(gone), 'marked row')} no longer stale")
        near = Heading(f"{plural(len(found.near), 'task')} less than {age(NEAR)} from stale")
        self.list.show([*found.stale, *([near, *found.near] if found.near else [])])
        limits = found.thresholds
        text = f" Limits ({WHOSE[limits.source]}): claimed {age(limits.claimed)} · running {age(limits.running)}"
        self.query_one("#limits", Static).update(safe(f"{text} · pending past good_until"))
        self._explain()
        self._say()

    def _explain(self) -> None:
        """Say what speaks for the verdict on the row under the cursor."""
        current, found, pane = self.list.current, self.found, self.query_one("#why", Static)
        if current is None or found is None:
            pane.border_title = ""
            pane.update(safe(_calm(found)))
            return
        facts = self._detail.task if self._detail is not None and self._detail.task.id == current.id else None
        lines = why(current, facts, found.upkeep, self.desk.clock.now())
        pane.border_title = safe(f" Why {short_id(current.id)} {current.task.task_name} ", cells=60)
        pane.update(Content("\n").join([safe(line) for line in lines]))

    def _say(self) -> None:
        found, marks = self.found, self.list.selection.marks
        if found is None:
            return
        runs = len(found.report.workflows)
        self.say(
            f"{len(marks)} marked" if marks else "",
            f"{len(found.stale):,} stale",
            f"{len(found.near):,} near limit",
            f"{plural(runs, 'workflow')} to heal" if runs else "",
            *found.report.warnings,
            f"ages by the database's clock (offset {self.desk.clock.offset.total_seconds():+.1f}s)",
        )

    def tick(self) -> None:
        self.list.tick()
        self._explain()

    def on_row_list_cursor_moved(self) -> None:
        self._explain()
        self.desk.store.refresh("detail")

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
        return Selector.of_ids(self.chosen) if self.chosen else None

    def fitting(self) -> Action:
        return Action.REQUEUE

    def proposal(self, action: Action, selector: Selector) -> Callable[[Source], Awaitable[Proposal]]:
        """As elsewhere, but running tasks are meant too, and those that may not be dead are pointed out."""
        options, cautions = ActionOptions(include_running=action is not Action.EXPIRE), self._cautions()
        return lambda source: model.for_tasks(source, action, selector, options, cautions=cautions)

    def _cautions(self) -> tuple[str, ...]:
        chosen = set(self.list.selection.chosen)
        meant = [each for each in self.list.rows if each.id in chosen]
        alive, near = sum(each.is_alive for each in meant), sum(each.is_near for each in meant)
        said = {
            "silent though the worker still reports: perhaps blocked, and still at work": alive,
            "not stale yet": near,
        }
        return tuple(f"{count} {what}" for what, count in said.items() if count)

    def action_op_sweep(self) -> None:
        self.propose(self._sweep)

    def action_plan_dry(self) -> None:
        """What requeue would do to the marked rows; where none are marked, what a sweep would do."""
        if self.list.selection.marks:
            super().action_plan_dry()
        else:
            self.dry_run(self._sweep)

    async def _sweep(self, source: Source) -> Proposal:
        return await for_sweep(source, self.options)

    async def action_view_limits(self) -> None:
        """Ask by which limit to judge; the next key is not looked at before there is a line that it can go to."""
        now = self.options.sweep_threshold
        asked = AskDialog(LIMIT, "" if now is None else duration_text(now))
        await self.app.push_screen(asked, self._answered)
        asked.set_focus(asked.query_one(Input))

    def _answered(self, text: str | None) -> None:
        source = self.desk.source
        if text is not None and source is not None:
            self._judge_by(text, source)

    @work(group="limits", exclusive=True, exit_on_error=False)
    async def _judge_by(self, text: str, source: Source) -> None:
        """Judge by another limit from now on, unless it would condemn tasks that are well."""
        try:
            options = SweepOptions(sweep_threshold=parse_duration(text) if text else None)
            await source.stale_candidates(options)
        except (ValueError, HorsiesError) as error:
            why = error.message if isinstance(error, HorsiesError) else error
            self.notify(clean(why), severity="error", markup=False)
            return
        self.options = options
        self.desk.store.refresh("stale")

    def action_copy_cli(self) -> None:
        self.copy(f"{command(self.options)} --dry-run", "the command")


def _calm(found: Staleness | None) -> str:
    return "" if found is None else " nothing is stale, and nothing is near its limit"
