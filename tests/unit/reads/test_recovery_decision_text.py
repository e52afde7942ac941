"""The description of a recovery decision, shown by the command line and the TUI."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies_ops.reads.stale import RecoveryDecision

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("decision", "description"),
    [
        (RecoveryDecision(decision="leave", reason="fresh"), "a sweep would not change it: not stale"),
        (
            RecoveryDecision(decision="leave", reason="outage_grace", held_until=NOON),
            "a sweep would not change it until 12:00:00Z: outage grace period",
        ),
        (
            RecoveryDecision(decision="fail", reason="OWNER_LOST", code="WORKER_CRASHED"),
            "a sweep would fail it with WORKER_CRASHED: OWNER_LOST",
        ),
    ],
)
def test_description_has_the_decision_and_its_reason(decision: RecoveryDecision, description: str) -> None:
    assert decision.description == description
