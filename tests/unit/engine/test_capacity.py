"""Whether a worker may claim: not while it stops, nor while it could not replace a child that dies."""

from __future__ import annotations

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
class Pool:
    children: set[IdleChild] = field(default_factory=lambda: {IdleChild()})
    can_replace_children: bool = True


def capacity_of(pool: Pool) -> Capacity:
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
    pool = Pool(can_replace_children=False)
    capacity = capacity_of(pool)
    assert (capacity.is_closed, capacity.plan(ALL_KINDS)) == (True, None)
    pool.can_replace_children = True
    plan = capacity.plan(ALL_KINDS)
    assert (capacity.is_closed, plan and plan.pids) == (False, [1])


def test_stopping_worker_plans_nothing_with_a_fork_server_either() -> None:
    capacity = capacity_of(Pool())
    capacity.close()
    assert (capacity.is_closed, capacity.plan(ALL_KINDS)) == (True, None)
