"""Plans of sub-workflows are made by their definitions: code of users, which may raise anything and never come back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from horsies.sync import DaemonThreads

if TYPE_CHECKING:
    from horsies.model.workflow.plan import Definitions, WorkflowPlan
    from horsies.store.flows import WaitingChild

LIMIT_S: Final = 10.0


class BuildFailed(Exception):
    """No plan came of it; says what its author should read."""


class Building:
    """Builds each plan in a thread of its own, which nobody joins: one that hangs holds up no other, nor an exit."""

    def __init__(self, definitions: Definitions, *, limit_s: float = LIMIT_S) -> None:
        self._definitions = definitions
        self._limit_s = limit_s
        self._threads = DaemonThreads()

    async def plan_of(self, child: WaitingChild) -> WorkflowPlan | None:
        """The plan; None where the definition is not known here. `BuildFailed` whatever else happens."""
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.wrap_future(self._threads.submit(self._build, child))
        except TimeoutError:
            raise BuildFailed(f"building it took longer than {self._limit_s:g} s") from None

    def _build(self, child: WaitingChild) -> WorkflowPlan | None:
        try:
            return self._definitions.build(child.definition_key, json.loads(child.kwargs), json.loads(child.context))
        except BaseException as error:
            # An exit or a cancellation that a definition raises is its own affair, and must not become this loop's.
            raise BuildFailed(said(error)) from error


def said(error: BaseException) -> str:
    """The kind of an error, and its text where it has one."""
    kind, text = type(error).__qualname__, str(error)
    return f"{kind}: {text}" if text else kind
