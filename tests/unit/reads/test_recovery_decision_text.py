"""The description of a recovery decision, shown by the command line and the TUI."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies.model.recovery.decision import DecisionKind
from horsies.recovery.report import SweptTask
from tests.support.rows import make_swept_task

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("decision", "description"),
    [
        (make_swept_task(decision=DecisionKind.LEAVE, reason="fresh"), "a sweep would not change it: not stale"),
        (
            make_swept_task(decision=DecisionKind.LEAVE, reason="outage_grace", held_until=NOON),
            "a sweep would not change it until 12:00:00Z: outage grace period",
        ),
        (
            make_swept_task(decision=DecisionKind.FAIL, reason="OWNER_LOST", code="WORKER_CRASHED"),
            "a sweep would fail it with WORKER_CRASHED: OWNER_LOST",
        ),
    ],
)
def test_description_has_the_decision_and_its_reason(decision: SweptTask, description: str) -> None:
    assert decision.description == description
