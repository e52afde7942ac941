"""Maintenance: what sweep and retention have to do, what the tables take up, and what operators did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual import work
from textual.content import Content
from textual.widgets import Static

from horsies.errors import HorsiesError
from horsies.model.recovery.options import SweepOptions
from horsies.model.retention import Cleaned
from horsies.recovery.report import SweepReport
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.storage import Storage
from horsies_ops.reads.upkeep import Upkeep
from horsies_tui.actions import Place, bindings
from horsies_tui.chores import CHORE_COLUMNS, Chore, Known, Part, chores
from horsies_tui.cleanup_proposals import for_cleanup
from horsies_tui.format import clean, clock, safe
from horsies_tui.messages import TasksWanted
from horsies_tui.operator_log import log_line
from horsies_tui.saving import save_rows
from horsies_tui.screens.main_screen import ANY_TASK
from horsies_tui.screens.proposing import ProposingScreen
from horsies_tui.store import Want
from horsies_tui.sweep_proposals import for_sweep
from horsies_tui.widgets.log_dialog import LogDialog
from horsies_tui.widgets.row_list import RowList
from horsies_tui.widgets.storage_pane import StoragePane

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.events import AuditRow
    from horsies_tui.desk import Desk
    from horsies_tui.proposals import Proposal
    from horsies_tui.source import Source

SHOWN: Final = 30
"""Actions of operators on this screen, where there is room for so many."""

WHOLE: Final = 1_000
"""As many as the whole log shows and the file has."""

_NEVER: Final = frozenset[Topic]()


class MaintenanceScreen(ProposingScreen):
    """Numbers are those of dry runs: what a sweep and a cleanup would do now."""

    place = Place.MAINT
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.MAINT)]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.known = Known()
        self.list: RowList[Chore] = RowList(
            CHORE_COLUMNS, key=lambda chore: chore.key, now=desk.clock.now, glyphs=desk.glyphs
        )
        self._counted_at: datetime | None = None

    def body(self) -> ComposeResult:
        yield self.list
        yield StoragePane()
        yield Static("", id="operator-log")

    def on_mount(self) -> None:
        self.query_one("#operator-log").border_title = " Operator log "

    def wants(self) -> Sequence[Want]:
        return (
            Want(name="sweep", fetch=_sweep, touched_by=ANY_TASK, rest_s=5.0),
            Want(name="upkeep", fetch=_upkeep, touched_by=frozenset({Topic.EVENT}), rest_s=5.0),
            # Counting what is old takes long in a large table.
            Want(name="cleanup", fetch=_cleanup, touched_by=_NEVER, every_s=60.0),
            Want(name="storage", fetch=_storage, touched_by=_NEVER, every_s=30.0),
            Want(name="log", fetch=_log, touched_by=ANY_TASK | {Topic.EVENT}, rest_s=2.0),
        )

    def take(self, name: str, value: object) -> None:
        now = self.desk.clock.now()
        match value:
            case SweepReport():
                self.known = replace(self.known, sweep=value)
            case Cleaned():
                self.known, self._counted_at = replace(self.known, cleanup=value), now
            case Upkeep():
                self.known = replace(self.known, upkeep=value)
            case Storage():
                self.query_one(StoragePane).show(value, now)
            case tuple() if name == "log":
                self._show_log(value)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return
        self.list.show(chores(self.known, now))
        counted = "" if self._counted_at is None else f"those of retention as of {clock(self._counted_at)}"
        self.say("numbers are those of dry runs", counted, *self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        upkeep, sweep = self.known.upkeep, self.known.sweep
        alone = ("no worker lives to do this by itself",) if upkeep is not None and upkeep.config is None else ()
        return (*alone, *(sweep.warnings if sweep is not None else ()))

    def _show_log(self, rows: tuple[AuditRow, ...]) -> None:
        lines = [safe(log_line(row)) for row in reversed(rows)]
        self.query_one("#operator-log", Static).update(Content("\n").join(lines) if lines else "nothing yet")

    def tick(self) -> None:
        self.list.tick()

    @property
    def _part(self) -> Part:
        """Which of the two the cursor is in."""
        current = self.list.current
        return Part.SWEEP if current is None else current.part

    def on_row_list_opened(self) -> None:
        """The rows that the line would take, where some screen lists them."""
        chore = self.list.current
        if chore is None:
            return
        if chore.behind is not None:
            self.post_message(TasksWanted(chore.behind))
        elif chore.key == "sweep workflows":
            self.app.call_later(self.app.run_action, f"go('{Place.FLOWS}')")
        elif chore.part is Part.SWEEP:
            self.app.call_later(self.app.run_action, f"go('{Place.STALE}')")
        else:
            self.notify("these rows have no list; d tells how many there are, and how large")

    def action_plan_dry(self) -> None:
        self.dry_run(self._cleaning if self._part is Part.CLEANUP else self._sweeping)

    def action_op_sweep(self) -> None:
        self.propose(self._sweeping)

    def action_op_cleanup(self) -> None:
        self.propose(self._cleaning)

    async def _sweeping(self, source: Source) -> Proposal:
        return await for_sweep(source, SweepOptions())

    async def _cleaning(self, source: Source) -> Proposal:
        return await for_cleanup(source, where=self.desk.database, now=self.desk.clock.now())

    @work(group="log", exclusive=True, exit_on_error=False)
    async def action_nav_events(self) -> None:
        """The whole operator log."""
        if (rows := await self._whole_log()) is not None:
            self.app.push_screen(LogDialog(self.desk, rows))

    @work(group="export", exit_on_error=False)
    async def action_export_rows(self) -> None:
        """Write the operator log into a file."""
        if (rows := await self._whole_log()) is not None:
            await save_rows(self, "log", rows, self.desk.clock.now())

    async def _whole_log(self) -> tuple[AuditRow, ...] | None:
        source = self.desk.source
        try:
            return None if source is None else await source.audit(limit=WHOLE)
        except HorsiesError as error:
            self.notify(clean(error.message), severity="error", markup=False)
            return None

    def action_copy_cli(self) -> None:
        self.copy(f"horsies {self._part} --dry-run", "the command")


async def _sweep(source: Source) -> SweepReport:
    return await source.stale_candidates()


async def _upkeep(source: Source) -> Upkeep:
    return await source.upkeep()


async def _cleanup(source: Source) -> Cleaned:
    return await source.cleanup_candidates()


async def _storage(source: Source) -> Storage:
    return await source.storage()


async def _log(source: Source) -> tuple[AuditRow, ...]:
    return await source.audit(limit=SHOWN)
