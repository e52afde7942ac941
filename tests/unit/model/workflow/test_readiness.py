from __future__ import annotations

import pytest

from horsies.model.workflow.plan import JoinType
from horsies.model.workflow.plan import WorkflowTaskStatus as S
from horsies.model.workflow.progress import NeverReady, NodeState, readiness

ALL, ANY, QUORUM = JoinType.ALL, JoinType.ANY, JoinType.QUORUM
OK, ERR, SKIP, OPEN = S.COMPLETED, S.FAILED, S.SKIPPED, S.RUNNING


@pytest.mark.parametrize(
    ("join", "dependencies", "expected"),
    [
        (ALL, [], True),
        (ALL, [OK, OPEN], False),
        (ALL, [OK, OK], True),
        (ALL, [ERR, OPEN], False),
        (ALL, [OK, ERR], NeverReady(1)),
        (ALL, [SKIP, OK], NeverReady(0)),
        (ANY, [OPEN, OPEN], False),
        (ANY, [OK, OPEN], True),
        (ANY, [ERR, OPEN], False),
        (ANY, [ERR, OK], True),
        (ANY, [SKIP, ERR], NeverReady(0)),
        (QUORUM, [OK, OPEN, OPEN], False),
        (QUORUM, [OK, OK, OPEN], True),
        (QUORUM, [OK, ERR, OPEN], False),
        (QUORUM, [OPEN, ERR, SKIP], NeverReady(1)),
    ],
)
def test_a_node_starts_by_its_join(join: JoinType, dependencies: list[S], expected: bool | NeverReady) -> None:
    assert readiness(_node(join, dependencies), dependencies) == expected


@pytest.mark.parametrize(("last", "expected"), [(OPEN, False), (ERR, True), (SKIP, True), (OK, True)])
def test_a_node_that_allows_failures_waits_for_the_end_of_all(last: S, expected: bool) -> None:
    node = NodeState(status=S.PENDING, dependencies=(0, 1), allow_failed_deps=True)
    assert readiness(node, [ERR, last]) is expected


def test_a_node_waits_for_what_it_wants_to_read_whatever_its_join_says() -> None:
    node = NodeState(status=S.PENDING, dependencies=(0, 1), join=ANY, context_dependencies=(1,))
    assert readiness(node, [OK, OPEN]) is False
    assert readiness(node, [OK, ERR]) is True


def _node(join: JoinType, dependencies: list[S]) -> NodeState:
    return NodeState(
        status=S.PENDING,
        dependencies=range(len(dependencies)),
        join=join,
        min_success=2 if join is QUORUM else None,
    )
