"""Whether a worker may claim: not while it stops, nor while it could not replace a child that dies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from horsies.engine.dispatcher import Capacity
from horsies.engine.heartbeat import WorkerIdentity
from horsies.engine.in_flight import Assignments, InFlight
from horsies.model.capacity import ALL_KINDS, ClaimLimits, DurationEstimates
from horsies.model.settings import AppConfig
from horsies.model.settings.broker import DatabaseUrl
from horsies.model.settings.worker import WorkerConfig


@dataclass(eq=False)
class IdleChild:
    pid: int = 1
    accepts_work: bool = True
    chunks: tuple[()] = ()
    tasks_in_child: int = 0


@dataclass
class FakePool:
    children: set[IdleChild] = field(default_factory=lambda: {IdleChild()})
    fork_server_lost: asyncio.Event = field(default_factory=asyncio.Event)


def capacity_of(pool: FakePool) -> Capacity:
    in_flight, durations, limits = InFlight(), DurationEstimates(), ClaimLimits()
    return Capacity(
        pool=cast("Any", pool),
        assignments=Assignments(in_flight, durations, async_tasks=(), limits=limits),
        in_flight=in_flight,
        durations=durations,
        identity=WorkerIdentity.new(),
        app_config=AppConfig(),
        worker_config=WorkerConfig(dsn=DatabaseUrl.parse("embedded"), queues=["default"]),
        async_tasks=(),
        unknown_tasks=cast("Any", None),
        limits=limits,
    )


def test_nothing_is_planned_while_no_child_can_be_replaced() -> None:
    pool = FakePool()
    pool.fork_server_lost.set()
    capacity = capacity_of(pool)
    assert (capacity.accepts_work, capacity.plan(ALL_KINDS)) == (False, None)
    pool.fork_server_lost.clear()
    plan = capacity.plan(ALL_KINDS)
    assert (capacity.accepts_work, plan and plan.pids) == (True, [1])


def test_stopping_worker_plans_nothing() -> None:
    capacity = capacity_of(FakePool())
    capacity.stop()
    assert (capacity.accepts_work, capacity.plan(ALL_KINDS)) == (False, None)
