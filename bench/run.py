"""`make bench`: the floor and horsies on one durable server, in one run.

A figure alone says little on a shared machine; the ratio to the floor in the same round is what is held against the
goals. Each round begins on empty tables after a checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from bench import floor, producers, sending
from bench.machine import load, look
from bench.rounds import Measurement, Rounds, Work
from bench.server import clear, durable_server, make_tables, refuse_unsafe
from bench.table import render

FLOOR_ONE = "floor: INSERT one by one"
FLOOR_TOGETHER = "floor: INSERT by producers at once"
FLOOR_BULK = "floor: INSERT of 1,000 by unnest"
UNANNOUNCED = "send by producers at once, nobody told"
CLAIMABLE_ROWS = 10_000


def measurements(*, scale: float, producing: int) -> list[Measurement]:
    """Every figure beside the one it is held against."""

    def rows(full: int, step: int = 1) -> int:
        return max(int(full * scale) // step, 1) * step

    def together(opening: Callable[..., AbstractAsyncContextManager[Work]], name: str, **held: Any) -> Measurement:
        amount, warm_up = rows(800, producing), 5 * producing
        opened = partial(opening, producers=producing)
        return Measurement(name=name, unit="rows/s", opening=opened, amount=amount, warm_up=warm_up, **held)

    one, bulk = rows(250), rows(10_000, floor.BATCH_ROWS)
    return [
        Measurement(name=FLOOR_ONE, unit="rows/s", opening=floor.inserting_one_by_one, amount=one),
        Measurement(
            name="send one by one",
            unit="rows/s",
            opening=sending.sending_one_by_one,
            amount=one,
            against=FLOOR_ONE,
            reach=0.8,
        ),
        together(producers.inserting_at_once, FLOOR_TOGETHER),
        together(producers.sending_at_once_unannounced, UNANNOUNCED, against=FLOOR_TOGETHER),
        together(producers.sending_at_once, "send by producers at once", against=UNANNOUNCED, reach=0.8),
        Measurement(name=FLOOR_BULK, unit="rows/s", opening=floor.inserting_in_bulk, amount=bulk),
        Measurement(
            name="send_many",
            unit="rows/s",
            opening=sending.sending_in_bulk,
            amount=bulk,
            against=FLOOR_BULK,
            reach=0.45,
        ),
        Measurement(
            name="floor: claim 100, complete 100",
            unit="tasks/s",
            opening=floor.claiming_and_completing,
            amount=bulk // 2,
        ),
        Measurement(name="floor: NOTIFY heard", unit="ms", opening=floor.notifying, amount=one),
        Measurement(
            name="floor: INSERT and NOTIFY heard", unit="ms", opening=floor.inserting_and_notifying, amount=one
        ),
    ]


async def measure(url: str, chosen: list[Measurement], *, rounds: int, as_json: bool) -> None:
    load_before = load()
    await make_tables(url)
    await refuse_unsafe(url)
    taken = Rounds(chosen)
    await taken.run(url, rounds, before_each=prepare)
    machine = await look(url, load_before=load_before)
    if as_json:
        document = {"machine": dataclasses.asdict(machine), "rounds": taken.taken}
        figures = {each.name: dataclasses.asdict(each) for each in taken.figures()}
        print(json.dumps({**document, "figures": figures}))
    else:
        print(render(taken.figures(), machine, rounds=rounds))


async def prepare(url: str) -> None:
    await clear(url)
    await floor.fill(url, CLAIMABLE_ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--small", action="store_true", help="one round of little, to see that it works")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    chosen = measurements(scale=0.01, producing=2) if options.small else measurements(scale=1, producing=8)
    rounds = 1 if options.small else options.rounds
    with durable_server() as url:
        asyncio.run(measure(url, chosen, rounds=rounds, as_json=options.as_json))


if __name__ == "__main__":
    main()
