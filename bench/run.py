"""`python -m bench.run`: sending with horsies compared with plain asyncpg on one durable server.

Absolute figures say little on a shared machine, so goals are ratios to the baseline of the same round. Each round
starts with empty tables after a checkpoint.
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

from bench import baseline, producers, sending
from bench.machine import describe_machine, load
from bench.rounds import Measurement, Rounds, Work
from bench.server import clear, create_tables, durable_server, require_durable
from bench.table import render

BASELINE_ONE = "baseline: INSERT one by one"
BASELINE_CONCURRENT = "baseline: INSERT by concurrent producers"
BASELINE_BULK = "baseline: INSERT of 1,000 rows with unnest"
WITHOUT_NOTIFY = "send by concurrent producers, without NOTIFY"
CLAIMABLE_ROWS = 10_000


def measurements(*, scale: float, producing: int) -> list[Measurement]:
    """All measurements, each after the one it is compared with."""

    def rows(full: int, step: int = 1) -> int:
        return max(int(full * scale) // step, 1) * step

    def concurrent(open_: Callable[..., AbstractAsyncContextManager[Work]], name: str, **compared: Any) -> Measurement:
        amount, warm_up = rows(800, producing), 5 * producing
        opened = partial(open_, producers=producing)
        return Measurement(name=name, unit="rows/s", open=opened, amount=amount, warm_up=warm_up, **compared)

    one, bulk = rows(250), rows(10_000, baseline.BATCH_ROWS)
    return [
        Measurement(name=BASELINE_ONE, unit="rows/s", open=baseline.insert_one_by_one, amount=one),
        Measurement(
            name="send one by one",
            unit="rows/s",
            open=sending.send_one_by_one,
            amount=one,
            against=BASELINE_ONE,
            goal=0.65,
        ),
        concurrent(producers.insert_concurrently, BASELINE_CONCURRENT),
        concurrent(producers.send_concurrently_without_notify, WITHOUT_NOTIFY, against=BASELINE_CONCURRENT),
        concurrent(producers.send_concurrently, "send by concurrent producers", against=WITHOUT_NOTIFY, goal=0.8),
        Measurement(name=BASELINE_BULK, unit="rows/s", open=baseline.insert_in_bulk, amount=bulk),
        Measurement(
            name="send_many",
            unit="rows/s",
            open=sending.send_in_bulk,
            amount=bulk,
            against=BASELINE_BULK,
            goal=0.45,
        ),
        Measurement(
            name="baseline: claim 100, complete 100",
            unit="tasks/s",
            open=baseline.claim_and_complete,
            amount=bulk // 2,
        ),
        Measurement(name="baseline: NOTIFY received", unit="ms", open=baseline.notify, amount=one),
        Measurement(name="baseline: INSERT to NOTIFY received", unit="ms", open=baseline.insert_and_notify, amount=one),
    ]


async def measure(url: str, chosen: list[Measurement], *, rounds: int, as_json: bool) -> None:
    load_before = load()
    await create_tables(url)
    await require_durable(url)
    runs = Rounds(chosen)
    await runs.run(url, rounds, before_each=prepare)
    machine = await describe_machine(url, load_before=load_before)
    if as_json:
        figures = {figure.name: dataclasses.asdict(figure) for figure in runs.figures()}
        print(json.dumps({"machine": dataclasses.asdict(machine), "rounds": runs.results, "figures": figures}))
    else:
        print(render(runs.figures(), machine, rounds=rounds))


async def prepare(url: str) -> None:
    await clear(url)
    await baseline.fill(url, CLAIMABLE_ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--small", action="store_true", help="a single small round, to test the benchmark itself")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    chosen = measurements(scale=0.01, producing=2) if options.small else measurements(scale=1, producing=8)
    rounds = 1 if options.small else options.rounds
    with durable_server() as url:
        asyncio.run(measure(url, chosen, rounds=rounds, as_json=options.as_json))


if __name__ == "__main__":
    main()
