"""How many tasks a worker claims in one pass, and for which children."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.capacity import (
    WORK_AHEAD_MS,
    ChildLoad,
    ClaimLimits,
    ClaimPlan,
    QueueCapacity,
    ServedQueue,
    TaskKind,
    child_depth,
    plan_claim,
    select_for_child,
)

IDLE = ChildLoad(pid=1)
LONG = ChildLoad(pid=1, tasks=1, remaining_ms=1000, has_functions=True)
SHORT = ChildLoad(pid=1, tasks=64, remaining_ms=6.4, has_functions=True)
TWO_COROUTINES = ChildLoad(pid=1, tasks=2, remaining_ms=1000, has_coroutines=True)
UNKNOWN, QUICK, SLOW = (
    ServedQueue(name="new"),
    ServedQueue(name="quick", run_ms=0.1),
    ServedQueue(name="slow", run_ms=900),
)
MIXED_APP = ClaimLimits(processes=2, keeps_child_for_functions=True)

kinds = st.sets(st.sampled_from(TaskKind))
children = st.builds(
    ChildLoad,
    pid=st.integers(1, 5),
    tasks=st.integers(0, 130),
    remaining_ms=st.floats(0, 100),
    has_coroutines=st.booleans(),
    has_functions=st.booleans(),
)
queues = st.builds(
    ServedQueue,
    name=st.sampled_from("abcd"),
    max_concurrency=st.none() | st.integers(0, 5),
    run_ms=st.none() | st.floats(0, 100),
)
limits = st.builds(
    ClaimLimits,
    processes=st.integers(1, 5),
    prefetch_buffer=st.integers(0, 20),
    max_claim_batch=st.integers(0, 20),
    max_claim_per_worker=st.integers(0, 20),
    max_chunk=st.integers(1, 64),
    async_concurrency=st.integers(1, 20),
    cluster_wide_cap=st.none() | st.integers(1, 20),
    keeps_child_for_functions=st.booleans(),
)


def capacities(found: ClaimPlan | None) -> dict[str, int]:
    return {} if found is None else {queue.name: queue.capacity for queue in found.queues}


@pytest.mark.parametrize(
    ("run_ms", "depth"), [(None, 1), (0.0, 256), (0.1, 256), (0.15625, 256), (0.5, 80), (1, 40), (39, 1), (900, 1)]
)
def test_child_holds_at_most_forty_milliseconds_of_work(run_ms: float | None, depth: int) -> None:
    queue = ServedQueue(name="q", run_ms=run_ms)
    assert child_depth(queue, ClaimLimits()) == depth
    assert child_depth(queue, ClaimLimits(max_chunk=1)) == 1
    assert child_depth(queue, ClaimLimits(cluster_wide_cap=9)) == 1
    assert child_depth(replace(queue, max_concurrency=9), ClaimLimits()) == 1


@pytest.mark.parametrize(
    ("child", "queue", "kind", "slots"),
    [
        (IDLE, UNKNOWN, TaskKind.ANY, 1),
        (IDLE, QUICK, TaskKind.ANY, 256),
        (LONG, UNKNOWN, None, 0),
        (LONG, QUICK, None, 0),
        (TWO_COROUTINES, UNKNOWN, TaskKind.COROUTINE, 8),
        (TWO_COROUTINES, QUICK, TaskKind.COROUTINE, 8),
        (replace(TWO_COROUTINES, tasks=10), UNKNOWN, None, 0),
        (replace(TWO_COROUTINES, remaining_ms=4), QUICK, TaskKind.ANY, 254),
        (replace(TWO_COROUTINES, remaining_ms=39), QUICK, TaskKind.COROUTINE, 8),
        (SHORT, QUICK, TaskKind.ANY, 192),
        (SHORT, SLOW, TaskKind.ANY, 1),
        (replace(SHORT, tasks=129), QUICK, None, 0),
        (replace(SHORT, remaining_ms=30), QUICK, None, 0),
    ],
)
def test_child_offers_slots_while_its_work_is_short(
    child: ChildLoad, queue: ServedQueue, kind: TaskKind | None, slots: int
) -> None:
    found = plan_claim([queue], [child], ClaimLimits(async_concurrency=10))
    assert ((None, 0) if found is None else (found.kind, found.limit)) == (kind, slots)


def test_chunk_is_claimed_for_one_child() -> None:
    found = plan_claim([QUICK], [SHORT, replace(IDLE, pid=2), replace(LONG, pid=3)], ClaimLimits())
    assert found == ClaimPlan(
        kind=TaskKind.ANY, limit=256, pids=[2] * 256, queues=(QueueCapacity(name="quick", capacity=256),)
    )


def test_single_tasks_are_claimed_for_all_children_at_once() -> None:
    found = plan_claim([UNKNOWN, SLOW], [IDLE, replace(IDLE, pid=2)], ClaimLimits())
    assert found is not None
    assert (found.limit, found.pids, capacities(found)) == (2, [1, 2], {"new": 2, "slow": 2})


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        ({TaskKind.ANY, TaskKind.FUNCTION, TaskKind.COROUTINE}, TaskKind.FUNCTION),
        ({TaskKind.COROUTINE}, TaskKind.COROUTINE),
        ({TaskKind.ANY}, None),
        (set[TaskKind](), None),
    ],
)
def test_one_child_is_kept_for_functions(kinds: set[TaskKind], kind: TaskKind | None) -> None:
    loads = [TWO_COROUTINES, replace(IDLE, pid=2)]
    found = plan_claim([UNKNOWN], loads, MIXED_APP, kinds=kinds)
    assert (found and found.kind) is kind


def test_coroutines_use_all_children_but_one() -> None:
    loads = [TWO_COROUTINES, replace(IDLE, pid=2), replace(IDLE, pid=3)]
    found = plan_claim([UNKNOWN], loads, replace(MIXED_APP, processes=3))
    assert found is not None
    assert (found.kind, found.pids) == (TaskKind.ANY, [2, 3])
    # The coroutines of an app without functions use every child.
    found = plan_claim([UNKNOWN], loads[:2], ClaimLimits(processes=2))
    assert found is not None
    assert found.kind is TaskKind.ANY


@pytest.mark.parametrize(
    ("settings", "claimed", "limit", "startable"),
    [
        (ClaimLimits(), 0, 2, 2),
        (ClaimLimits(), 2, 0, 0),
        (ClaimLimits(prefetch_buffer=4), 0, 6, 2),
        (ClaimLimits(prefetch_buffer=4), 3, 3, 0),
        (ClaimLimits(prefetch_buffer=4), 6, 0, 0),
        (ClaimLimits(max_claim_batch=1), 0, 1, 1),
        (ClaimLimits(prefetch_buffer=4, max_claim_per_worker=3), 0, 3, 2),
        (ClaimLimits(prefetch_buffer=4, max_claim_per_worker=3), 3, 0, 0),
        (ClaimLimits(cluster_wide_cap=1), 0, 1, 1),
        (ClaimLimits(cluster_wide_cap=5), 0, 2, 2),
    ],
)
def test_limits_apply_to_two_idle_children(settings: ClaimLimits, claimed: int, limit: int, startable: int) -> None:
    found = plan_claim([UNKNOWN], [IDLE, replace(IDLE, pid=2)], settings, claimed=claimed)
    assert ((found.limit, len(found.pids)) if found else (0, 0)) == (limit, startable)


def test_max_claim_batch_applies_to_each_queue() -> None:
    loads = [replace(IDLE, pid=pid) for pid in range(5)]
    found = plan_claim([UNKNOWN, SLOW], loads, ClaimLimits(max_claim_batch=2))
    assert found is not None
    assert (found.limit, capacities(found)) == (4, {"new": 2, "slow": 2})


def test_caps_are_passed_on_and_closed_queues_left_out() -> None:
    capped, closed = ServedQueue(name="capped", max_concurrency=3), ServedQueue(name="closed", max_concurrency=0)
    found = plan_claim([capped, closed, UNKNOWN], [replace(IDLE, pid=pid) for pid in range(5)], ClaimLimits())
    assert found is not None
    assert found.queues == (QueueCapacity(name="capped", capacity=3, cap=3), QueueCapacity(name="new", capacity=5))


def test_worker_without_children_or_queues_claims_nothing() -> None:
    assert plan_claim([UNKNOWN], [], ClaimLimits()) is None
    assert plan_claim([], [IDLE], ClaimLimits()) is None


@given(
    st.lists(queues, max_size=4, unique_by=lambda queue: queue.name),
    st.lists(children, max_size=5, unique_by=lambda child: child.pid),
    limits,
    st.integers(0, 20),
    kinds,
)
def test_plan_is_never_negative_or_above_a_limit(
    served: list[ServedQueue], loads: list[ChildLoad], settings: ClaimLimits, claimed: int, kinds: set[TaskKind]
) -> None:
    found = plan_claim(served, loads, settings, claimed=claimed, kinds=kinds)
    if found is None:
        return
    assert len(found.pids) <= found.limit
    assert 0 < found.limit <= sum(queue.capacity for queue in found.queues)
    assert found.limit <= (settings.cluster_wide_cap or found.limit)
    assert not settings.max_claim_per_worker or found.limit + claimed <= settings.max_claim_per_worker
    for queue in found.queues:
        assert 0 < queue.capacity <= (settings.max_claim_batch or queue.capacity)
        assert queue.cap is None or queue.capacity <= queue.cap
    for child in loads:
        count = found.pids.count(child.pid)
        most = settings.async_concurrency if found.kind is TaskKind.COROUTINE else 4 * settings.max_chunk
        assert count <= 1 or child.tasks + count <= most


@pytest.mark.parametrize(
    ("run_times", "taken"),
    [
        ([], []),
        ([15.0, 15.0, 15.0], [0, 1]),
        ([1.0, 500.0, 1.0], [0, 2, 1]),
        ([None, None], [0]),
        ([1.0, None, 1.0, None], [0, 2, 1]),
        ([30.0, 20.0, 10.0], [0, 2]),
    ],
)
def test_child_takes_short_tasks_and_one_long_one_last(run_times: list[float | None], taken: list[int]) -> None:
    assert select_for_child(IDLE, run_times, most=256) == taken


@given(children, st.lists(st.none() | st.floats(0, 100), max_size=300), st.integers(4, 256))
def test_child_never_takes_more_than_it_can_start_soon(
    child: ChildLoad, run_times: list[float | None], most: int
) -> None:
    taken = select_for_child(child, run_times, most=most)
    assert len(set(taken)) == len(taken)
    waited_ms = child.remaining_ms
    for index in taken:
        assert waited_ms <= WORK_AHEAD_MS * 1.000001 or not child.tasks
        waited_ms += run_times[index] or 0.0


def test_waiting_coroutines_do_not_keep_an_idle_child_from_functions() -> None:
    loads = [replace(TWO_COROUTINES, tasks=10), replace(IDLE, pid=2)]
    found = plan_claim([UNKNOWN], loads, replace(MIXED_APP, prefetch_buffer=4), claimed=4)
    assert found is not None
    assert (found.kind, found.limit, found.pids) == (TaskKind.FUNCTION, 1, [2])
