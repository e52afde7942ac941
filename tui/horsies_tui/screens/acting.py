"""Screens with tasks that can be acted on: one way from the key to the preview, and from there to what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import work

from horsies.errors import HorsiesError
from horsies.model.actions import Action
from horsies_tui import proposals
from horsies_tui.format import clean
from horsies_tui.screens.main_screen import MainScreen
from horsies_tui.widgets.plan_dialog import PlanDialog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from horsies_ops.actions.selector import Selector
    from horsies_tui.proposals import Proposal
    from horsies_tui.source import Source


class ActingScreen(MainScreen):
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
            return

        def proposal(source: Source) -> Awaitable[Proposal]:
            return proposals.for_tasks(source, action, selector)

        self.propose(proposal)

    @work(group="act", exit_on_error=False)
    async def propose(self, proposal: Callable[[Source], Awaitable[Proposal]]) -> None:
        """Show a proposal, have it decided and carried out."""
        source = self.desk.source
        if source is None or not self.desk.can_act:
            self.notify("actions are off", severity="warning")
            return
        try:
            shown = await proposal(source)
        except HorsiesError as error:
            self.notify(clean(error.message), severity="error", markup=False)
            return
        settings = self.desk.settings
        dialog = PlanDialog(shown, where=self.desk.database, must_give_reason=settings.require_reason)
        outcome = await self.app.push_screen_wait(dialog)
        if outcome is not None:
            self.settled(outcome.changed)

    def copy(self, text: str, what: str) -> None:
        """To the clipboard, by the terminal; shown as well, for terminals that take nothing."""
        self.app.copy_to_clipboard(text)
        self.notify(clean(text, limit=200), title=f"copied {what}", markup=False)

    def open_task(self, task_id: UUID) -> None:
        """Show everything about a task."""
        self.notify(clean(task_id), title="no detail screen in this build", markup=False)

    def action_op_requeue(self) -> None:
        self.act(self.fitting())

    def action_op_fail(self) -> None:
        self.act(Action.FAIL)

    def action_op_expire(self) -> None:
        self.act(Action.EXPIRE)

    def action_op_cancel(self) -> None:
        self.act(Action.CANCEL)
