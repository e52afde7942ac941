"""What a child holds: begun, or not begun, and nothing else."""

from __future__ import annotations

import pytest

from horsies.engine.pool.child import Outstanding
from horsies.engine.pool.protocol import AttemptKey, ProtocolError
from tests.support.pool import assignment


def test_the_only_task_of_an_idle_child_counts_as_begun() -> None:
    hand, given = Outstanding(), assignment("noop")
    hand.add([given])
    assert (hand.begun, hand.unbegun) == ((given.key,), ())


def test_of_a_chunk_nothing_has_begun_before_the_child_says_so() -> None:
    hand, given = Outstanding(), [assignment("noop"), assignment("noop")]
    hand.add(given)
    assert hand.begun == ()
    hand.mark_begun(given[0].key)
    assert (hand.begun, hand.unbegun) == ((given[0].key,), (given[1].key,))


def test_a_task_handed_to_a_busy_child_has_not_begun() -> None:
    hand, given = Outstanding(), assignment("noop")
    hand.add([assignment("noop")])
    hand.add([given])
    assert hand.unbegun == (given.key,)


def test_a_child_that_speaks_of_a_task_it_was_not_given_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="not given"):
        Outstanding().remove(AttemptKey("a stranger", 1))
