"""A workflow as it is started: every name resolved, every argument in stored form, nodes known by their index."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class JoinType(StrEnum):
    """How many of its dependencies a node needs."""

    ALL = "all"
    ANY = "any"
    QUORUM = "quorum"


class OnError(StrEnum):
    """What becomes of a run when one of its nodes fails: other branches go on, or everything waits for a person."""

    FAIL = "fail"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node. A sub-workflow has a `definition_key` and neither queue nor priority; its `name` is the workflow's."""

    index: int
    node_id: str
    name: str
    kwargs_json: str = "{}"
    queue_name: str | None = None
    priority: int | None = None
    dependencies: tuple[int, ...] = ()
    """Indexes of the nodes it waits for, ascending, each once."""
    args_from: Mapping[str, int] = field(default_factory=dict[str, int])
    """Parameters that get the whole result of a dependency."""
    ctx_from: tuple[str, ...] | None = None
    """Ids of the dependencies whose results stand in `workflow_ctx`; None where the node asks for none."""
    allow_failed_deps: bool = False
    join: JoinType = JoinType.ALL
    min_success: int | None = None
    """Given for a quorum, and only there."""
    good_until: datetime | None = None
    options_json: str = "{}"
    """The `task_options` of the backing task, canonical JSON, with the task's flags beside them under `flags`."""
    max_retries: int = 0
    is_subworkflow: bool = False
    definition_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRule:
    """A run is a success when all nodes of one case are COMPLETED; `optional` names those whose failure is expected."""

    cases: tuple[tuple[int, ...], ...]
    optional: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPlan:
    """A run to be; `nodes` stand at their indexes."""

    name: str
    definition_key: str
    on_error: OnError
    nodes: tuple[NodePlan, ...]
    output_index: int | None = None
    success: SuccessRule | None = None


class Definitions(Protocol):
    """The workflow definitions that a process knows."""

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        """The plan of a sub-workflow; None where the key is unknown here, and whatever the definition raises.

        `kwargs` are the node's stored ones as plain JSON. `injected` has the form of a backing task's `context`:
        `{"args_from": {parameter: result document}, "workflow_ctx": {node id: {"result": document, "task_name": name,
        "summary": document}}, "workflow_meta": {"workflow_id", "task_index", "task_name"}}`, each part where there is
        one. `task_name` lets a child read a result as its task declares it; `summary` is that of a sub-workflow.
        """
        ...
