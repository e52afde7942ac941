"""A duty that keeps failing is tried rarely, shown, and taken up again."""

from __future__ import annotations

from horsies.engine.service import PeriodicJob
from horsies.errors import DatabaseUnreachable


class Duty:
    """Fails as it is told to, and counts."""

    def __init__(self) -> None:
        self.error: Exception | None = RuntimeError("no such function")
        self.tries = 0
        self.changes: list[tuple[str, str | None]] = []
        self.operation = PeriodicJob("expire", on_change=lambda name, error: self.changes.append((name, error)))

    async def work(self) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error

    async def tick(self, times: int) -> None:
        for _ in range(times):
            await self.operation.run_if_due(self.work)


async def test_two_failures_change_nothing() -> None:
    duty = Duty()
    await duty.tick(2)
    assert (duty.tries, duty.changes) == (2, [])


async def test_after_three_failures_it_is_shown_and_tried_at_one_tick_in_ten() -> None:
    duty = Duty()
    await duty.tick(3)
    assert duty.changes == [("expire", "no such function")]
    await duty.tick(9)
    assert duty.tries == 3
    await duty.tick(1)
    assert duty.tries == 4
    await duty.tick(10)
    assert (duty.tries, len(duty.changes)) == (5, 1)


async def test_a_success_takes_it_up_again() -> None:
    duty = Duty()
    await duty.tick(3)
    duty.error = None
    await duty.tick(10)
    assert duty.changes[-1] == ("expire", None)
    await duty.tick(5)
    assert duty.tries == 3 + 1 + 5


async def test_a_success_in_between_begins_the_count_anew() -> None:
    duty, error = Duty(), RuntimeError("again")
    for each in (error, error, None, error, error):
        duty.error = each
        await duty.tick(1)
    assert (duty.tries, duty.changes) == (5, [])


async def test_a_database_that_is_away_is_no_failure_of_the_duty() -> None:
    duty = Duty()
    duty.error = DatabaseUnreachable("it is away")
    await duty.tick(20)
    assert (duty.tries, duty.changes) == (20, [])
