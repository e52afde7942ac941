"""Screens with one short list that can be sorted: everything is loaded, and the cursor stays on its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.operator_actions import Action
from horsies_tui.format import clean
from horsies_tui.messages import TaskWanted
from horsies_tui.proposals import model
from horsies_tui.proposals.dialog import PlanDialog
from horsies_tui.screens.base import MainScreen
from horsies_tui.widgets.dialogs import Order, SortPicker
from horsies_tui.widgets.filter_bar import WordLine
from horsies_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

    from horsies_ops.actions.plan import Selector
    from horsies_tui.data.context import Desk
    from horsies_tui.data.source import Source
    from horsies_tui.keys import Place
    from horsies_tui.proposals.model import Outcome, Proposal
    from horsies_tui.widgets.row_list import Column


# Screens with a short list that a few words narrow down.


class NarrowedScreen(MainScreen):
    """A subclass puts `self.narrowing` above its list, shows what `narrowed` leaves, and does so again in `narrow`."""

    list: RowList[Any]

    def __init__(self, desk: Desk, tabs: frozenset[Place]) -> None:
        super().__init__(desk, tabs)
        self.narrowing = WordLine(prompt=desk.glyphs.prompt)

    def narrow(self) -> None:
        """Show the rows anew: other words are meant."""
        raise NotImplementedError

    def narrowed(self, rows: Sequence[Any]) -> Sequence[Any]:
        """The rows in which every word is to be read, whichever the column."""
        return [row for row in rows if all(word in self._text(row) for word in self.narrowing.words)]

    def _text(self, row: object) -> str:
        # An age that ticks is no word: rows would come and go with it.
        now = self.desk.clock.now()
        return " ".join(column.cell(row, now).text for column in self.list.columns if not column.ticks).lower()

    def on_word_line_changed(self) -> None:
        self.narrow()

    def on_word_line_left(self) -> None:
        self.list.focus()
        self.narrowing.leave()

    def step_back(self) -> bool:
        return self.narrowing.step_back()

    def action_filter_edit(self) -> None:
        self.narrowing.edit()

    def action_filter_clear(self) -> None:
        self.narrowing.clear()


# Screens from which something can be changed: one way from the key to the preview, and to what came of it.


class ProposingScreen(MainScreen):
    """A subclass hands a proposal over; nothing is changed by any other way."""

    _is_making = False

    def settled(self, changed: Sequence[UUID]) -> None:
        """A change was carried out, to these tasks among others: show what is there now."""
        del changed
        self.desk.store.refresh()

    def propose(self, proposal: Callable[[Source], Awaitable[Proposal]]) -> None:
        """Show a proposal, have it decided and carried out."""
        if self.desk.can_act:
            self._begin(proposal, is_dry_run=False)
        else:
            self.notify("actions are off", severity="warning")

    def dry_run(self, proposal: Callable[[Source], Awaitable[Proposal]]) -> None:
        """Show what would be done, and leave it at that; for read-only sessions too."""
        self._begin(proposal, is_dry_run=True)

    def _begin(self, proposal: Callable[[Source], Awaitable[Proposal]], *, is_dry_run: bool) -> None:
        """One at a time, from the key to the closed preview: a key that is typed twice does not do a thing twice."""
        # What was typed before the preview stood is heard here after it does.
        if not self._is_making and self.is_current:
            self._is_making = True
            self.run_worker(self._preview(proposal, is_dry_run=is_dry_run), group="act", exit_on_error=False)

    async def _preview(self, proposal: Callable[[Source], Awaitable[Proposal]], *, is_dry_run: bool) -> None:
        try:
            shown = await self._made(proposal)
            if shown is not None:
                must_give_reason = self.desk.settings.require_reason and not is_dry_run
                dialog = PlanDialog(
                    shown, where=self.desk.database, must_give_reason=must_give_reason, is_dry_run=is_dry_run
                )
                self.app.push_screen(dialog, self._decided)
        finally:
            self._is_making = False

    def _decided(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self.settled(outcome.changed)

    async def _made(self, proposal: Callable[[Source], Awaitable[Proposal]]) -> Proposal | None:
        source = self.desk.source
        if source is None:
            self.notify("there is no connection", severity="warning")
            return None
        try:
            return await proposal(source)
        except HorsiesError as error:
            self.notify(clean(error.message), severity="error", markup=False)
            return None


T = TypeVar("T")


class SortedScreen(NarrowedScreen, ProposingScreen, Generic[T]):
    """A subclass names its columns and the orders; `detail` is what it wants about the row under the cursor."""

    sorts: ClassVar[Mapping[str, Callable[[Any], Any]]]

    def __init__(
        self, desk: Desk, tabs: frozenset[Place], columns: Sequence[Column[T]], *, key: Callable[[T], Hashable]
    ) -> None:
        super().__init__(desk, tabs)
        self.list: RowList[T] = RowList(columns, key=key, now=desk.clock.now, glyphs=desk.glyphs)
        self.order = Order(by=next(iter(self.sorts)))
        self._rows: tuple[T, ...] = ()
        self._cursor: Hashable = None

    def show_rows(self, rows: Sequence[T]) -> None:
        """Take these rows as all there are."""
        self._rows = tuple(rows)
        self.list.show(self.order.sort(self.narrowed(self.shown(self._rows)), self.sorts))

    def narrow(self) -> None:
        self.show_rows(self._rows)
        self.show_detail()

    def shown(self, rows: Sequence[T]) -> Sequence[T]:
        """Those of all rows that are to be seen."""
        return rows

    def show_detail(self) -> None:
        """Say more about the row under the cursor, as far as it is known."""
        raise NotImplementedError

    def on_row_list_cursor_moved(self) -> None:
        if self.list.selection.cursor != self._cursor:
            self._cursor = self.list.selection.cursor
            self.desk.store.refresh("detail")
        self.show_detail()

    def tick(self) -> None:
        self.list.tick()

    def action_view_sort(self) -> None:
        self.app.push_screen(SortPicker(tuple(self.sorts), self.order.by), self._picked)

    def _picked(self, by: str | None) -> None:
        if by is not None:
            self.order = self.order.picked(by)
            self.show_rows(self._rows)


# Screens with tasks that can be acted on.


class ActingScreen(ProposingScreen):
    """A subclass says what is selected, which of requeue and retry fits it, and tidies up afterwards."""

    def selector(self) -> Selector | None:
        """What an action is about now."""
        raise NotImplementedError

    def fitting(self) -> Action:
        """Requeue or retry."""
        raise NotImplementedError

    def settled(self, changed: Sequence[UUID]) -> None:
        """These were changed: marks that have done their duty go, those of rows that were skipped stay."""
        raise NotImplementedError

    def act(self, action: Action) -> None:
        """Preview the action; the selection is frozen here, whatever the list does meanwhile."""
        selector = self.selector()
        if selector is None:
            self.notify("no row to act on")
        else:
            self.propose(self.proposal(action, selector))

    def proposal(self, action: Action, selector: Selector) -> Callable[[Source], Awaitable[Proposal]]:
        """The action on what is selected, to be looked at first."""
        return lambda source: model.for_tasks(source, action, selector)

    def open_task(self, task_id: UUID, among: Sequence[UUID] = ()) -> None:
        """Show everything about a task; whoever looks at it may go on through the list that it stands in."""
        self.post_message(TaskWanted(task_id, among))

    def action_op_requeue(self) -> None:
        self.act(self.fitting())

    def action_plan_dry(self) -> None:
        """What `R` would do, and no more."""
        selector = self.selector()
        if selector is None:
            self.notify("no row to look at")
        else:
            self.dry_run(self.proposal(self.fitting(), selector))

    def action_op_fail(self) -> None:
        self.act(Action.FAIL)

    def action_op_expire(self) -> None:
        self.act(Action.EXPIRE)

    def action_op_cancel(self) -> None:
        self.act(Action.CANCEL)


# Screens with a list of tasks in which rows can be marked.


class MarkingScreen(ActingScreen):
    """Keys of the list are the ids of tasks. Marked rows are meant; where there are none, the row under the cursor."""

    list: RowList[Any]

    @property
    def chosen(self) -> tuple[UUID, ...]:
        """What an action would be about."""
        return tuple(key for key in self.list.selection.chosen if isinstance(key, UUID))

    def settled(self, changed: Sequence[UUID]) -> None:
        self.list.selection.unmark(changed)
        self.list.marks_changed()
        self.desk.store.refresh()

    def action_mark_toggle(self) -> None:
        self.list.selection.toggle()
        self.list.marks_changed()
        self.list.action_nav_down()

    def action_mark_range(self) -> None:
        self.list.selection.mark_range()
        self.list.marks_changed()

    def action_mark_page(self) -> None:
        self.list.selection.mark_all()
        self.list.marks_changed()

    def action_mark_none(self) -> None:
        self.list.selection.unmark()
        self.list.marks_changed()

    def action_copy_id(self) -> None:
        self.copy("\n".join(map(str, self.chosen)), "ids")
