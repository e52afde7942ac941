"""When a workflow counts as a success though some of its nodes failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.client.workflow.nodes import AnyNode
    from horsies.model.workflow.names import NodeKey


@dataclass(frozen=True, slots=True)
class SuccessCase:
    """Satisfied when every required node is COMPLETED; a skipped one is not."""

    required: Sequence[AnyNode | NodeKey[Any]]


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """The run is COMPLETED when one case or more is satisfied; `optional` names nodes whose failure is expected."""

    cases: Sequence[SuccessCase]
    optional: Sequence[AnyNode | NodeKey[Any]] | None = None
