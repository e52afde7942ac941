"""A child lives as long as it is heard or uses its CPU."""

from __future__ import annotations

from horsies.engine.pool.child import Liveness


def _after(*ticks: tuple[bool, float], elapsed_s: float = 1.0) -> Liveness:
    """After looks at a child that was heard or not, at a CPU time."""
    liveness = Liveness()
    for was_heard, cpu_s in ticks:
        if was_heard:
            liveness.mark_heard()
        liveness.tick(elapsed_s=elapsed_s, expected_s=1.0, cpu_s=cpu_s)
    return liveness


def test_a_child_that_beats_is_neither_silent_nor_idle() -> None:
    liveness = _after((True, 0.5), (True, 0.5))
    assert (liveness.silence_s, liveness.idle_s, liveness.is_silent_but_busy) == (0, 0, False)


def test_a_silent_child_that_uses_its_cpu_is_vouched_for() -> None:
    liveness = _after((True, 0.5), (False, 1.5), (False, 2.5))
    assert (liveness.silence_s, liveness.idle_s, liveness.is_silent_but_busy) == (2, 0, True)


def test_a_silent_child_without_cpu_use_is_idle() -> None:
    liveness = _after((True, 0.5), (False, 0.5), (False, 0.5))
    assert (liveness.silence_s, liveness.idle_s, liveness.is_silent_but_busy) == (2, 2, False)


def test_a_beat_ends_the_silence() -> None:
    assert _after((False, 0.0), (False, 0.0), (True, 0.0)).idle_s == 0


def test_time_in_which_the_worker_stood_still_is_not_held_against_the_child() -> None:
    assert _after((False, 0.0), elapsed_s=600).idle_s == 2
