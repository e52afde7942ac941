"""A verdict in words, which the command line and the screens have in common."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies_ops.reads.stale import RecoveryDecision

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("verdict", "words"),
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
def test_a_verdict_says_what_a_sweep_would_do_and_why(verdict: RecoveryDecision, words: str) -> None:
    assert verdict.description == words
