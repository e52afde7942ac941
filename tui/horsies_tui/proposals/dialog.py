"""The dialog of a proposal: preview, confirmation, progress and result. Going back is the default."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final
from uuid import UUID

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, ProgressBar, Static

from horsies.errors import HorsiesError
from horsies_ops.actions.report import ActionProgress
from horsies_tui.format import safe
from horsies_tui.proposals.model import Confirmation, Proposal, ProposalLine, ProposalReport
from horsies_tui.system import copy_text

KEY_DELAY_S: Final = 0.3
"""Keys are ignored this long after the dialog opens: they were typed for the screen below."""

UNDO_S: Final = 30.0
"""How long the result offers to undo."""

MAX_COMMAND_WIDTH: Final = 120
"""The shown command is cut here, as it may contain hundreds of ids; the copy is complete."""


class ProposalDialog(ModalScreen[ProposalReport | None]):
    """Shows a proposal and applies it when confirmed. Result: the report, or None if not applied."""

    # No widget has the focus at first, so that Enter goes back.
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "apply", "apply"),
        Binding("enter,escape,n,q", "leave", "back"),
        Binding("e", "edit", "options"),
        Binding("c", "copy", "copy command"),
        Binding("u", "undo", "undo"),
    ]

    def __init__(
        self, proposal: Proposal, *, database_name: str, requires_reason: bool = False, is_dry_run: bool = False
    ) -> None:
        super().__init__()
        self.keys_enabled = asyncio.Event()
        """Set when keys are no longer ignored."""
        self._proposal = proposal
        self._database_name = database_name
        self._requires_reason = requires_reason
        self._is_dry_run = is_dry_run
        self._stop: asyncio.Event | None = None
        self._report: ProposalReport | None = None
        self._changed_ids: tuple[UUID, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(id="proposal"):
            with VerticalScroll(can_focus=False):
                yield Static(id="proposal-text")
            yield Input(placeholder="reason, recorded in the operator log", compact=True, id="proposal-reason")
            yield ConfirmationInput(compact=True, id="proposal-confirmation")
            yield Static(id="proposal-status")
            yield ProgressBar(show_eta=False, id="proposal-progress")
            with Horizontal(id="proposal-buttons"):
                yield _mouse_only_button("Back", "proposal-back")
                yield _mouse_only_button("", "proposal-apply")
                yield Static("", id="proposal-keys")

    def on_mount(self) -> None:
        self.query_one(ProgressBar).display = False
        self._show()
        self.set_timer(KEY_DELAY_S, self.keys_enabled.set)

    @property
    def _can_apply(self) -> bool:
        return not (self._is_dry_run or self._proposal.is_empty)

    @property
    def _command(self) -> str | None:
        """The equivalent command; with --dry-run if this is a dry run."""
        command = self._proposal.command
        return f"{command} --dry-run" if command and self._is_dry_run else command

    def _show(self) -> None:
        proposal = self._proposal
        kind = "dry run, nothing is changed" if self._is_dry_run else "preview, nothing changed yet"
        self.query_one("#proposal").border_title = safe(f"{proposal.title} — {kind}")
        self.query_one("#proposal-text", Static).update(_proposal_content(proposal, self._database_name, self._command))
        confirmation = self.query_one(ConfirmationInput)
        confirmation.wants_digits = (proposal.confirmation_text or "").isdigit()
        confirmation.display = proposal.confirmation_text is not None and self._can_apply
        confirmation.placeholder = f"type {proposal.confirmation_text} to continue"
        self.query_one("#proposal-reason", Input).display = self._can_apply
        apply_button = self.query_one("#proposal-apply", Button)
        apply_button.label = safe(f"y  {proposal.apply_label}")
        apply_button.display = proposal.confirmation_text is None and self._can_apply
        self.query_one("#proposal-keys", Static).update(_keys(proposal, can_apply=self._can_apply))
        self._focus_confirmation()

    def set_status(self, text: str) -> None:
        self.query_one("#proposal-status", Static).update(safe(text))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("apply", "leave", "edit", "copy", "undo") and not self.keys_enabled.is_set():
            return False
        return super().check_action(action, parameters)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "proposal-back":
            self.action_leave()
        else:
            self.action_apply()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        # An input handles Enter itself, so `check_action` was not asked.
        if not self.keys_enabled.is_set():
            return
        if event.input.id == "proposal-reason":
            self._focus_confirmation()
        elif event.value.strip() == self._proposal.confirmation_text:
            self._start_apply()
        else:
            self.action_leave()

    def _focus_confirmation(self) -> None:
        """Focus the confirmation input; without one nothing has the focus, so that Enter goes back."""
        confirmation = self.query_one(ConfirmationInput)
        self.set_focus(confirmation if confirmation.display else None)

    def action_apply(self) -> None:
        """`y`: apply a proposal that needs no typed confirmation."""
        if self._proposal.confirmation_text is None:
            self._start_apply()

    def _start_apply(self) -> None:
        # `_stop` is set once: pressing `y` again must not apply the proposal twice.
        if self._stop is not None or not self._can_apply:
            return
        reason = self.query_one("#proposal-reason", Input).value.strip()
        if self._requires_reason and not reason:
            self.set_status("a reason is required (setting tui.require_reason)")
            self.query_one("#proposal-reason", Input).focus()
            return
        self._stop = asyncio.Event()
        self.run_worker(self._apply(reason or None, self._stop), group="apply", exit_on_error=False)

    async def _apply(self, reason: str | None, stop: asyncio.Event) -> None:
        for name in ("#proposal-reason", "#proposal-confirmation", "#proposal-buttons"):
            self.query_one(name).display = False
        self.set_focus(None)
        self.query_one(ProgressBar).display = True
        self.set_status("Esc stops after the current batch")
        try:
            confirmed = Confirmation(reason=reason, progress=self._show_progress, stop=stop)
            self._finish(await self._proposal.apply(confirmed))
        except HorsiesError as error:
            lines = (error.message, "changes made before the error are in the operator log")
            # The changed ids lose their marks, so that a second try does not apply to them again.
            self._finish(ProposalReport(title="Failed", lines=lines, changed_ids=self._changed_ids))

    def _show_progress(self, progress: ActionProgress) -> None:
        self._changed_ids = progress.task_ids
        self.query_one(ProgressBar).update(total=max(progress.total, 1), progress=progress.done)

    def _finish(self, report: ProposalReport) -> None:
        self._report = report
        self.query_one(ProgressBar).display = False
        self.query_one("#proposal").border_title = safe(report.title)
        self.query_one("#proposal-text", Static).update(safe_lines(report.lines))
        self.set_status("u undo   Enter back" if report.undo else "Enter back")
        if report.undo is not None:
            self.set_timer(UNDO_S, self._expire_undo)

    def _expire_undo(self) -> None:
        if self._report is not None:
            self._report = replace(self._report, undo=None)
            self.set_status("Enter back")

    def action_leave(self) -> None:
        """Stop a running action after its batch; otherwise go back."""
        if self._stop is not None and self._report is None:
            # The dialog stays open until the report says how far the action came.
            self._stop.set()
        else:
            self.dismiss(self._report)

    async def action_edit(self) -> None:
        if self._proposal.with_next_option is None or self._stop is not None:
            return
        # If the new preview cannot be read, the one on screen stays.
        with contextlib.suppress(HorsiesError):
            self._proposal = await self._proposal.with_next_option()
            self._show()

    def action_copy(self) -> None:
        if self._command is not None:
            copy_text(self, self._command, "the command")

    async def action_undo(self) -> None:
        if self._report is None or self._report.undo is None:
            return
        try:
            self.set_status(await self._report.undo())
        except HorsiesError as error:
            self.set_status(error.message)


class ConfirmationInput(Input):
    """The input of a typed confirmation. If it expects digits, letters stay keys of the dialog."""

    wants_digits = False

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return super().check_consume_key(key, character) and not self._is_dialog_key(character)

    def on_key(self, event: events.Key) -> None:
        if self._is_dialog_key(event.character):
            # Without this, the key handler of Input would insert the letter.
            event.prevent_default()

    def _is_dialog_key(self, character: str | None) -> bool:
        return self.wants_digits and character is not None and character.isalpha()


def _mouse_only_button(label: str, name: str) -> Button:
    """A button that never has the focus, so that Enter cannot press it."""
    button = Button(label, id=name, compact=True)
    button.can_focus = False
    return button


def _proposal_content(proposal: Proposal, database_name: str, command: str | None) -> Content:
    warnings = [Content.assemble(("! ", "bold $text-warning"), safe(warning)) for warning in proposal.warnings]
    selected_by = safe(proposal.selected_by)
    header = Content.assemble(("Selected by  ", "bold"), selected_by, ("   on  ", "bold"), safe(database_name))
    lines = [header, Content(""), *_effect_lines(proposal.lines)]
    if warnings:
        lines += [Content(""), *warnings]
    if command:
        shown = safe(command, cells=MAX_COMMAND_WIDTH)
        lines += [Content(""), Content.assemble(("CLI  ", "bold"), shown, "  c copy")]
    return Content("\n").join(lines)


def _effect_lines(lines: Sequence[ProposalLine]) -> list[Content]:
    """Each effect as a heading, with the counts of the rows it applies to."""
    width = max((len(f"{line.count:,}") for line in lines), default=1)
    grouped: list[Content] = []
    for effect in dict.fromkeys(line.effect for line in lines):
        of_effect = [line for line in lines if line.effect == effect]
        grouped.append(safe(effect, "dim" if of_effect[0].is_skipped else "bold"))
        grouped += [Content.assemble((f"  {line.count:>{width},}  ", "bold"), safe(line.kind)) for line in of_effect]
    return grouped


def _keys(proposal: Proposal, *, can_apply: bool) -> Content:
    """What Enter does, and the current option; it is shown even if nothing would change, as it may be the cause."""
    if proposal.confirmation_text is None or not can_apply:
        keys = ["Enter back"]
    else:
        keys = ["Enter goes back until the text matches"]
    if proposal.option_text is not None:
        keys.append(f"e {proposal.option_text}")
    return Content("  ") + safe("   ".join(keys))


def safe_lines(lines: tuple[str, ...]) -> Content:
    return Content("\n").join([safe(line) for line in lines if line])
