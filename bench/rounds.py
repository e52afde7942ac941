"""Interleaved rounds: each takes every measurement once, and a ratio is taken inside its round.

Rounds are short and many. Whatever else the machine does meanwhile then falls on a figure and on what it is held
against alike, and the median leaves the rest out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

Work: TypeAlias = Callable[[int], Awaitable[None]]
"""Does something so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure, and what it is held against: another figure of the same round, and the share of it to reach."""

    name: str
    unit: str
    opening: Callable[[str], AbstractAsyncContextManager[Work]]
    amount: int
    warm_up: int = 30
    """Enough for a send to be one of a row, and for the server to have settled on the plan of its statement then."""
    against: str | None = None
    reach: float | None = None

    def figure(self, taken_s: float) -> float:
        return 1000 * taken_s / self.amount if self.unit == "ms" else self.amount / taken_s


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
    """What came of one measurement over all rounds."""

    name: str
    unit: str
    value: Spread
    against: str | None = None
    ratio: Spread | None = None
    reach: float | None = None


@dataclass(frozen=True, slots=True)
class Rounds:
    """Takes measurements round by round and keeps what they gave."""

    measurements: Sequence[Measurement]
    taken: list[dict[str, float]] = field(default_factory=list[dict[str, float]])

    async def run(self, url: str, count: int, *, before_each: Callable[[str], Awaitable[None]]) -> None:
        """Every other round goes backwards, so that nobody always comes after the same one."""
        async with AsyncExitStack() as stack:
            opened = [(each, await stack.enter_async_context(each.opening(url))) for each in self.measurements]
            for number in range(count + 1):
                await before_each(url)
                # The server looks at emptied tables anew, and plans anew; that is nobody's usual work.
                for measured, work in opened:
                    await work(measured.warm_up)
                if number:  # the first is for everything else that is new
                    self.taken.append(await _round(opened if number % 2 == 0 else opened[::-1]))

    def figures(self) -> list[Figure]:
        return [self._figure(each) for each in self.measurements]

    def _figure(self, measured: Measurement) -> Figure:
        ratio = None
        if measured.against is not None:
            ratio = Spread.of([found[measured.name] / found[measured.against] for found in self.taken])
        return Figure(
            name=measured.name,
            unit=measured.unit,
            value=Spread.of([found[measured.name] for found in self.taken]),
            against=measured.against,
            ratio=ratio,
            reach=measured.reach,
        )


async def _round(opened: Sequence[tuple[Measurement, Work]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for measured, work in opened:
        began = time.perf_counter()
        await work(measured.amount)
        found[measured.name] = measured.figure(time.perf_counter() - began)
    return found
