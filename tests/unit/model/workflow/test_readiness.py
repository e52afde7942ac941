from __future__ import annotations

import pytest

from horsies.model.workflow.plan import JoinType
from horsies.model.workflow.plan import WorkflowTaskStatus as S
from horsies.model.workflow.progress import NodeState, Readiness, readiness, unsuccessful_dependency

NOW, LATER, NEVER = Readiness.NOW, Readiness.LATER, Readiness.NEVER
ALL, ANY, QUORUM = JoinType.ALL, JoinType.ANY, JoinType.QUORUM
OK, ERR, SKIP, UNFINISHED = S.COMPLETED, S.FAILED, S.SKIPPED, S.RUNNING


@pytest.mark.parametrize(
    ("join", "dependencies", "expected"),
    [
        (ALL, [], NOW),
        (ALL, [OK, UNFINISHED], LATER),
        (ALL, [OK, OK], NOW),
        (ALL, [ERR, UNFINISHED], LATER),
        (ALL, [OK, ERR], NEVER),
        (ALL, [SKIP, OK], NEVER),
        (ANY, [UNFINISHED, UNFINISHED], LATER),
        (ANY, [OK, UNFINISHED], NOW),
        (ANY, [ERR, UNFINISHED], LATER),
        (ANY, [ERR, OK], NOW),
        (ANY, [SKIP, ERR], NEVER),
        (QUORUM, [OK, UNFINISHED, UNFINISHED], LATER),
        (QUORUM, [OK, OK, UNFINISHED], NOW),
        (QUORUM, [OK, ERR, UNFINISHED], LATER),
        (QUORUM, [UNFINISHED, ERR, SKIP], NEVER),
    ],
)
def test_readiness_depends_on_the_join_type(join: JoinType, dependencies: list[S], expected: Readiness) -> None:
    assert readiness(_node(join, dependencies), dependencies) is expected


@pytest.mark.parametrize(
    ("join", "dependencies", "expected"),
    [(ALL, [OK, ERR], 1), (ALL, [SKIP, OK], 0), (ANY, [SKIP, ERR], 0), (QUORUM, [UNFINISHED, ERR, SKIP], 1)],
)
def test_first_unsuccessful_dependency_is_the_reason(join: JoinType, dependencies: list[S], expected: int) -> None:
    assert unsuccessful_dependency(_node(join, dependencies), dependencies) == expected


@pytest.mark.parametrize(("last", "expected"), [(UNFINISHED, LATER), (ERR, NOW), (SKIP, NOW), (OK, NOW)])
def test_allow_failed_deps_waits_for_all_dependencies(last: S, expected: Readiness) -> None:
    node = NodeState(status=S.PENDING, dependencies=(0, 1), allow_failed_deps=True)
    assert readiness(node, [ERR, last]) is expected


def test_node_waits_for_its_context_dependencies() -> None:
    node = NodeState(status=S.PENDING, dependencies=(0, 1), join=ANY, context_dependencies=(1,))
    assert readiness(node, [OK, UNFINISHED]) is LATER
    assert readiness(node, [OK, ERR]) is NOW


def _node(join: JoinType, dependencies: list[S]) -> NodeState:
    return NodeState(
        status=S.PENDING,
        dependencies=range(len(dependencies)),
        join=join,
        min_success=2 if join is QUORUM else None,
    )
