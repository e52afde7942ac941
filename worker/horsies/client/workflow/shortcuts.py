"""Workflows in one line: `chain(fetch.s(url), parse.s())`, `group(resize.s(i) for i in ids).then(done.s())`.

They are ordinary workflows: their runs are shown, paused and retried like any other. Their name and `definition_key`
are made of the task names, unless they are given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from horsies.client.workflow.nodes import AnyNode, PartialCall
from horsies.client.workflow.spec import WorkflowSpec
from horsies.model.task_result import TaskError, TaskResult
from horsies.registry.definition import MAX_NAME_LENGTH

T = TypeVar("T")


def chain(*calls: PartialCall[Any], name: str | None = None, definition_key: str | None = None) -> WorkflowSpec[Any]:
    """A workflow that runs the calls one after the other; each takes the result of the one before it.

    The result goes to the first parameter that is not given: as a value, or as a `TaskResult` if it is declared so. The
    result of the run is that of the last call.
    """
    nodes: list[AnyNode] = []
    for call in calls:
        nodes.append(call.node(after=nodes[-1:]))
    default = _default_key("chain", calls)
    output = nodes[-1] if nodes else None
    return WorkflowSpec(name or default, nodes, output=output, definition_key=definition_key or default)


def group(calls: Iterable[PartialCall[Any]], *, name: str | None = None, definition_key: str | None = None) -> Group:
    """A workflow that runs the calls in parallel; its result is a `TaskResult` by node id."""
    return Group(tuple(calls), name, definition_key)


class Group(WorkflowSpec[dict[str, TaskResult[Any, TaskError]]]):
    """The value of `group`: a workflow to start, or to continue with `then`."""

    def __init__(self, calls: tuple[PartialCall[Any], ...], name: str | None, definition_key: str | None) -> None:
        self._calls = calls
        default = _default_key("group", calls)
        nodes = [call.node() for call in calls]
        super().__init__(name or default, nodes, definition_key=definition_key or default)

    def then(
        self, call: PartialCall[T], *, name: str | None = None, definition_key: str | None = None
    ) -> WorkflowSpec[T]:
        """A workflow that runs `call` after all calls of the group; see `PartialCall.node` for their results."""
        nodes: list[AnyNode] = [each.node() for each in self._calls]
        last = call.node(after=nodes)
        default = _default_key("group", (*self._calls, call))
        return WorkflowSpec(name or default, [*nodes, last], output=last, definition_key=definition_key or default)


def _default_key(kind: str, calls: Iterable[PartialCall[Any]]) -> str:
    """Made of the different task names, in order: a group of a thousand equal calls has the key of one."""
    names = dict.fromkeys(call.fn.task_name for call in calls)
    return f"{kind}:{'-'.join(names)}"[:MAX_NAME_LENGTH]
