"""The filter of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

from horsies.model.workflow.status import WorkflowStatus
from horsies_ops.reads.filter_language import FilterFault
from horsies_ops.reads.workflow_language import KEYS, ROOTS, parse_workflow_filter, workflow_filter_text
from horsies_tui.widgets.filter_line import QueryLine

if TYPE_CHECKING:
    from horsies_ops.reads.workflows import WorkflowFilter


class RunFilterLine(QueryLine):
    """`Filter ▸ status:running,failed   14 match`."""

    class Changed(Message):
        """Another filter is meant from now on."""

    class Left(QueryLine.Left):
        """Whoever typed is done."""

    def __init__(self, *, prompt: str) -> None:
        super().__init__(prompt=prompt)
        self.filter = ROOTS
        self.completion.keys = tuple(f"{key}:" for key in KEYS)
        self.completion.values = {"status": [status.lower() for status in WorkflowStatus], "sub": ["yes"]}

    @property
    def is_empty(self) -> bool:
        return self.filter == ROOTS and not self.text

    def show(self, wanted: WorkflowFilter) -> None:
        """Mean this filter, as if it had been typed."""
        self.put(workflow_filter_text(wanted))
        self._mean(wanted)

    def understand(self, text: str) -> FilterFault | None:
        match parse_workflow_filter(text):
            case FilterFault() as fault:
                return fault
            case wanted:
                return self._mean(wanted)

    def _mean(self, wanted: WorkflowFilter) -> None:
        if wanted != self.filter:
            self.filter = wanted
            self.post_message(self.Changed())
