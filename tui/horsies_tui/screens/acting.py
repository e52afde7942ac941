"""Screens with tasks that can be acted on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.actions import Action
from horsies_tui import proposals
from horsies_tui.messages import TaskWanted
from horsies_tui.screens.proposing import ProposingScreen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from horsies_ops.actions.selector import Selector
    from horsies_tui.proposals import Proposal
    from horsies_tui.source import Source


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
        return lambda source: proposals.for_tasks(source, action, selector)

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
