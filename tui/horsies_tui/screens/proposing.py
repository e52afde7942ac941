"""Screens from which something can be changed: one way from the key to the preview, and to what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import work

from horsies.errors import HorsiesError
from horsies_tui.format import clean
from horsies_tui.screens.main_screen import MainScreen
from horsies_tui.widgets.plan_dialog import PlanDialog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from horsies_tui.proposals import Proposal
    from horsies_tui.source import Source


class ProposingScreen(MainScreen):
    """A subclass hands a proposal over; nothing is changed by any other way."""

    def settled(self, changed: Sequence[UUID]) -> None:
        """A change was carried out, to these tasks among others: show what is there now."""
        del changed
        self.desk.store.refresh()

    @work(group="act", exit_on_error=False)
    async def propose(self, proposal: Callable[[Source], Awaitable[Proposal]]) -> None:
        """Show a proposal, have it decided and carried out."""
        if not self.desk.can_act:
            self.notify("actions are off", severity="warning")
        elif (shown := await self._made(proposal)) is not None:
            settings = self.desk.settings
            dialog = PlanDialog(shown, where=self.desk.database, must_give_reason=settings.require_reason)
            if (outcome := await self.app.push_screen_wait(dialog)) is not None:
                self.settled(outcome.changed)

    @work(group="act", exit_on_error=False)
    async def dry_run(self, proposal: Callable[[Source], Awaitable[Proposal]]) -> None:
        """Show what would be done, and leave it at that; for read-only sessions too."""
        if (shown := await self._made(proposal)) is not None:
            await self.app.push_screen_wait(PlanDialog(shown, where=self.desk.database, is_dry_run=True))

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
