"""Interleaved rounds: each round takes every measurement once, and ratios are computed within a round.

Many short rounds make ratios robust: other load on the machine affects a figure and its baseline alike, and the median
removes outliers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

Work: TypeAlias = Callable[[int], Awaitable[None]]
"""Does something the given number of times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure, the figure it is compared with (`against`), and the required ratio (`goal`)."""

    name: str
    unit: str
    open: Callable[[str], AbstractAsyncContextManager[Work]]
    amount: int
    warm_up: int = 30
    """Enough for sends to count as a burst and for the server to choose its generic plan."""
    against: str | None = None
    goal: float | None = None

    def figure(self, elapsed_s: float) -> float:
        return 1000 * elapsed_s / self.amount if self.unit == "ms" else self.amount / elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=statistics.median(values), least=min(values), most=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The result of one measurement over all rounds."""

    name: str
    unit: str
    value: Spread
    against: str | None = None
    ratio: Spread | None = None
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Rounds:
    """Takes the measurements round by round and keeps the results."""

    measurements: Sequence[Measurement]
    results: list[dict[str, float]] = field(default_factory=list[dict[str, float]])

    async def run(self, url: str, count: int, *, before_each: Callable[[str], Awaitable[None]]) -> None:
        """Run the rounds; every other one in reverse order, so that the order does not bias the figures."""
        async with AsyncExitStack() as stack:
            opened = [(m, await stack.enter_async_context(m.open(url))) for m in self.measurements]
            for number in range(count + 1):
                await before_each(url)
                # After TRUNCATE the server plans statements again, which is not part of a measurement.
                for measurement, work in opened:
                    await work(measurement.warm_up)
                if number:  # the first round is a warm-up
                    self.results.append(await _run_round(opened if number % 2 == 0 else opened[::-1]))

    def figures(self) -> list[Figure]:
        return [self._figure(measurement) for measurement in self.measurements]

    def _figure(self, measurement: Measurement) -> Figure:
        ratio = None
        if measurement.against is not None:
            ratio = Spread.of([result[measurement.name] / result[measurement.against] for result in self.results])
        return Figure(
            name=measurement.name,
            unit=measurement.unit,
            value=Spread.of([result[measurement.name] for result in self.results]),
            against=measurement.against,
            ratio=ratio,
            goal=measurement.goal,
        )


async def _run_round(opened: Sequence[tuple[Measurement, Work]]) -> dict[str, float]:
    result: dict[str, float] = {}
    for measurement, work in opened:
        started = time.perf_counter()
        await work(measurement.amount)
        result[measurement.name] = measurement.figure(time.perf_counter() - started)
    return result
