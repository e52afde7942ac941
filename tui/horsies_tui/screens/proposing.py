"""Screens from which something can be changed: one way from the key to the preview, and to what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.errors import HorsiesError
from horsies_tui.format import clean
from horsies_tui.screens.main_screen import MainScreen
from horsies_tui.widgets.plan_dialog import PlanDialog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from horsies_tui.proposals import Outcome, Proposal
    from horsies_tui.source import Source


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
