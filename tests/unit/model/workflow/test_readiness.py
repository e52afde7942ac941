from __future__ import annotations

import pytest

from horsies.model.workflow.plan import JoinType
from horsies.model.workflow.plan import WorkflowTaskStatus as S
from horsies.model.workflow.progress import NeverReady, NodeState, readiness

ALL, ANY, QUORUM = JoinType.ALL, JoinType.ANY, JoinType.QUORUM
OK, ERR, SKIP, UNFINISHED = S.COMPLETED, S.FAILED, S.SKIPPED, S.RUNNING


@pytest.mark.parametrize(
    ("join", "dependencies", "expected"),
    [
        (ALL, [], True),
        (ALL, [OK, UNFINISHED], False),
        (ALL, [OK, OK], True),
        (ALL, [ERR, UNFINISHED], False),
        (ALL, [OK, ERR], NeverReady(1)),
        (ALL, [SKIP, OK], NeverReady(0)),
        (ANY, [UNFINISHED, UNFINISHED], False),
        (ANY, [OK, UNFINISHED], True),
        (ANY, [ERR, UNFINISHED], False),
        (ANY, [ERR, OK], True),
        (ANY, [SKIP, ERR], NeverReady(0)),
        (QUORUM, [OK, UNFINISHED, UNFINISHED], False),
        (QUORUM, [OK, OK, UNFINISHED], True),
        (QUORUM, [OK, ERR, UNFINISHED], False),
        (QUORUM, [UNFINISHED, ERR, SKIP], NeverReady(1)),
    ],
)
def test_readiness_depends_on_the_join_type(join: JoinType, dependencies: list[S], expected: bool | NeverReady) -> None:
    assert readiness(_node(join, dependencies), dependencies) == expected


@pytest.mark.parametrize(("last", "expected"), [(UNFINISHED, False), (ERR, True), (SKIP, True), (OK, True)])
def test_allow_failed_deps_waits_for_all_dependencies(last: S, expected: bool) -> None:
    node = NodeState(status=S.PENDING, dependencies=(0, 1), allow_failed_deps=True)
    assert readiness(node, [ERR, last]) is expected


def test_node_waits_for_its_context_dependencies() -> None:
    node = NodeState(status=S.PENDING, dependencies=(0, 1), join=ANY, context_dependencies=(1,))
    assert readiness(node, [OK, UNFINISHED]) is False
    assert readiness(node, [OK, ERR]) is True


def _node(join: JoinType, dependencies: list[S]) -> NodeState:
    return NodeState(
        status=S.PENDING,
        dependencies=range(len(dependencies)),
        join=join,
        min_success=2 if join is QUORUM else None,
    )
