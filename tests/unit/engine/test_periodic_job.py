"""A periodic job that keeps failing runs less often, is reported, and recovers."""

from __future__ import annotations

from horsies.engine.reaper import PeriodicJob
from horsies.errors import DatabaseUnreachable


class FailingJob:
    """A job that raises `error` and counts its runs."""

    def __init__(self) -> None:
        self.error: Exception | None = RuntimeError("no such function")
        self.runs = 0
        self.changes: list[tuple[str, str | None]] = []
        self.periodic_job = PeriodicJob("expire", on_change=lambda name, error: self.changes.append((name, error)))

    async def work(self) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error

    async def tick(self, times: int) -> None:
        for _ in range(times):
            await self.periodic_job.run_if_due(self.work)


async def test_two_failures_change_nothing() -> None:
    job = FailingJob()
    await job.tick(2)
    assert (job.runs, job.changes) == (2, [])


async def test_after_three_failures_it_runs_every_tenth_tick() -> None:
    job = FailingJob()
    await job.tick(3)
    assert job.changes == [("expire", "no such function")]
    await job.tick(9)
    assert job.runs == 3
    await job.tick(1)
    assert job.runs == 4
    await job.tick(10)
    assert (job.runs, len(job.changes)) == (5, 1)


async def test_success_restores_the_normal_rate() -> None:
    job = FailingJob()
    await job.tick(3)
    job.error = None
    await job.tick(10)
    assert job.changes[-1] == ("expire", None)
    await job.tick(5)
    assert job.runs == 3 + 1 + 5


async def test_success_resets_the_failure_count() -> None:
    job, error = FailingJob(), RuntimeError("again")
    for job.error in (error, error, None, error, error):
        await job.tick(1)
    assert (job.runs, job.changes) == (5, [])


async def test_unavailable_database_does_not_count_as_failure() -> None:
    job = FailingJob()
    job.error = DatabaseUnreachable("no answer")
    await job.tick(20)
    assert (job.runs, job.changes) == (20, [])
