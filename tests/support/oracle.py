"""How a run must end, worked out from its graph alone; shares no rule with the code that is tested by it.

Neither order nor time occurs here: that they make no difference is what is to be shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.dags import Dag, DagNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a run. A failure is that of the node `blamed`, or has a `code` where no node is to blame."""

    status: str
    nodes: Sequence[str]
    blamed: int | None = None
    code: str | None = None
    children: Mapping[int, Verdict] = field(default_factory=dict[int, "Verdict"])
    """Of the sub-workflows that start, by the index of their node."""


def foretold(dag: Dag) -> Verdict:
    children = {index: foretold(node.child) for index, node in enumerate(dag.nodes) if node.child is not None}

    @cache
    def end_of(index: int) -> str:
        node = dag.nodes[index]
        if not _starts(node, [end_of(each) for each in node.dependencies]):
            return "SKIPPED"
        succeeds = children[index].status == "COMPLETED" if index in children else node.succeeds
        return "COMPLETED" if succeeds else "FAILED"

    ends = [end_of(index) for index in range(len(dag.nodes))]
    status, blamed, code = _end(dag, ends)
    started = {index: child for index, child in children.items() if ends[index] != "SKIPPED"}
    return Verdict(status=status, nodes=ends, blamed=blamed, code=code, children=started)


def _starts(node: DagNode, waited_for: Sequence[str]) -> bool:
    completed = waited_for.count("COMPLETED")
    if not waited_for:
        return True
    if node.join == "any":
        return completed > 0
    if node.join == "quorum":
        return completed >= (node.min_success or 0)
    return node.allow_failed_deps or completed == len(waited_for)


def _end(dag: Dag, ends: Sequence[str]) -> tuple[str, int | None, str | None]:
    """Status, whose failure it is, and the code where it is nobody's."""
    if dag.success is None:
        failed = [index for index, end in enumerate(ends) if end == "FAILED"]
        return ("FAILED", failed[0], None) if failed else ("COMPLETED", None, None)
    for case in dag.success.cases:
        if all(ends[index] == "COMPLETED" for index in case):
            return "COMPLETED", None, None
    failed = [index for case in dag.success.cases for index in case if ends[index] == "FAILED"]
    return ("FAILED", failed[0], None) if failed else ("FAILED", None, "WORKFLOW_SUCCESS_CASE_NOT_MET")
