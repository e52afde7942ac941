"""How long the steps of a shutdown may take."""

from __future__ import annotations

import asyncio

import pytest

from horsies.engine.service import ShutdownDeadline


def left_for_outcomes(deadline: ShutdownDeadline) -> float:
    ends_at = deadline.for_outcomes().when()
    assert ends_at is not None
    return ends_at - asyncio.get_running_loop().time()


async def test_outcomes_get_all_of_the_time() -> None:
    deadline = ShutdownDeadline(grace_s=60, kill_wait_s=5)
    deadline.begin()
    deadline.on_tasks_ended()
    assert left_for_outcomes(deadline) == pytest.approx(60 + 5 + 5 - 0.5, abs=0.2)


async def test_outcomes_get_five_seconds_after_the_last_task() -> None:
    deadline = ShutdownDeadline(grace_s=0, kill_wait_s=0)
    deadline.begin()
    deadline.on_tasks_ended()
    assert left_for_outcomes(deadline) == pytest.approx(5, abs=0.2)


@pytest.mark.parametrize("is_second_signal", [True, False])
async def test_time_is_bounded_after_an_unlimited_grace_period(is_second_signal: bool) -> None:
    deadline = ShutdownDeadline(grace_s=None, kill_wait_s=3)
    deadline.begin()
    if is_second_signal:
        deadline.end_grace()
    assert left_for_outcomes(deadline) == pytest.approx(3 + 5 - 0.5, abs=0.2)


async def test_other_statements_share_their_time() -> None:
    deadline = ShutdownDeadline(grace_s=60, kill_wait_s=5)
    deadline.begin()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), deadline.for_others():
                await asyncio.Event().wait()
    assert deadline.others_s == pytest.approx(3.5 - 0.2, abs=0.2)
