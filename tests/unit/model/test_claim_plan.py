"""How many tasks a worker claims in one pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.capacity import (
    ChildLoad,
    ClaimLimits,
    ClaimPlan,
    QueueCapacity,
    ServedQueue,
    plan_claim,
    swap_mismatched_slots,
)

IDLE = ChildLoad()
BUSY = ChildLoad(tasks=1, chunks=1)
TWO_ASYNC = ChildLoad(tasks=2, chunks=2, is_all_async=True)
ONE_CHUNK = ChildLoad(tasks=64, chunks=1, is_short=True)
TWO_CHUNKS = ChildLoad(tasks=70, chunks=2, is_short=True)
UNKNOWN, QUICK, SLOW = ServedQueue(name="new"), ServedQueue(name="quick", chunk_size=64), ServedQueue(name="slow")

children = st.builds(
    ChildLoad, tasks=st.integers(0, 130), chunks=st.integers(0, 2), is_all_async=st.booleans(), is_short=st.booleans()
)
queues = st.builds(
    ServedQueue,
    name=st.sampled_from("abcd"),
    max_concurrency=st.none() | st.integers(0, 5),
    chunk_size=st.integers(1, 64),
)
limits = st.builds(
    ClaimLimits,
    prefetch_buffer=st.integers(0, 20),
    max_claim_batch=st.integers(0, 20),
    max_claim_per_worker=st.integers(0, 20),
    async_concurrency=st.integers(1, 20),
    cluster_wide_cap=st.none() | st.integers(1, 20),
)


def capacities(found: ClaimPlan | None) -> dict[str, int]:
    return {} if found is None else {queue.name: queue.capacity for queue in found.queues}


@pytest.mark.parametrize(
    ("child", "queue", "slots"),
    [
        (IDLE, UNKNOWN, 1),
        (IDLE, QUICK, 128),
        (BUSY, UNKNOWN, 0),
        (BUSY, QUICK, 0),
        (TWO_ASYNC, UNKNOWN, 8),
        (TWO_ASYNC, QUICK, 8),
        (ChildLoad(tasks=10, is_all_async=True), UNKNOWN, 0),
        (ChildLoad(tasks=12, is_all_async=True), UNKNOWN, 0),
        (ONE_CHUNK, QUICK, 64),
        (ONE_CHUNK, SLOW, 1),
        (TWO_CHUNKS, QUICK, 32),
        (ChildLoad(tasks=97, chunks=2, is_short=True), QUICK, 0),
        (TWO_CHUNKS, SLOW, 0),
    ],
)
def test_child_offers_slots_for_now_or_after_its_chunk(child: ChildLoad, queue: ServedQueue, slots: int) -> None:
    found = plan_claim([queue], [child], ClaimLimits(async_concurrency=10), claimed=0)

    assert (0 if found is None else found.limit) == slots


def test_slots_of_all_children_are_summed() -> None:
    found = plan_claim([QUICK], [IDLE, ONE_CHUNK, TWO_CHUNKS, BUSY], ClaimLimits(), claimed=0)

    assert found == ClaimPlan(limit=224, startable=224, queues=(QueueCapacity(name="quick", capacity=224),))


def test_queues_without_estimates_share_the_children() -> None:
    found = plan_claim([UNKNOWN, SLOW], [IDLE, IDLE], ClaimLimits(), claimed=0)

    assert found is not None
    assert (found.limit, capacities(found)) == (2, {"new": 2, "slow": 2})


def test_slot_behind_a_chunk_is_reserved_for_slow_queues() -> None:
    found = plan_claim([QUICK, SLOW], [IDLE, ONE_CHUNK], ClaimLimits(), claimed=0)

    assert found is not None
    assert (found.limit, capacities(found)) == (64 + 2, {"quick": 64, "slow": 2})


def test_async_slots_are_counted_once_for_all_queues() -> None:
    found = plan_claim([QUICK, SLOW], [TWO_ASYNC], ClaimLimits(async_concurrency=10), claimed=0)

    assert found is not None
    assert (found.limit, capacities(found)) == (8, {"quick": 8, "slow": 8})


@pytest.mark.parametrize(("max_async_only", "limit", "async_only"), [(None, 9, 8), (3, 4, 3), (0, 1, 0)])
def test_async_only_slots_come_last_and_are_limited(max_async_only: int | None, limit: int, async_only: int) -> None:
    found = plan_claim([UNKNOWN], [IDLE, TWO_ASYNC], ClaimLimits(), claimed=0, max_async_only=max_async_only)

    assert found is not None
    assert (found.limit, found.startable, found.async_only) == (limit, limit, async_only)


def test_sync_task_swaps_slots_with_a_coroutine() -> None:
    free, busy = 1, 2

    assert swap_mismatched_slots([free, busy], {busy}, [True, False]) == [busy, free]
    assert swap_mismatched_slots([free, busy], {busy}, [False, True]) == [free, busy]
    assert swap_mismatched_slots([free, busy], {busy}, [False, False]) == [free, busy]
    assert swap_mismatched_slots([busy, busy, free], {busy}, [False, False, True]) == [free, busy, busy]


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
    found = plan_claim([UNKNOWN], [IDLE, IDLE], settings, claimed=claimed)

    assert ((found.limit, found.startable) if found else (0, 0)) == (limit, startable)


def test_max_claim_batch_applies_to_each_queue() -> None:
    found = plan_claim([UNKNOWN, SLOW], [IDLE] * 5, ClaimLimits(max_claim_batch=2), claimed=0)

    assert found is not None
    assert (found.limit, capacities(found)) == (4, {"new": 2, "slow": 2})


def test_caps_are_passed_on_and_closed_queues_left_out() -> None:
    capped, closed = ServedQueue(name="capped", max_concurrency=3), ServedQueue(name="closed", max_concurrency=0)
    found = plan_claim([capped, closed, UNKNOWN], [IDLE] * 5, ClaimLimits(), claimed=0)

    assert found is not None
    assert found.queues == (QueueCapacity(name="capped", capacity=3, cap=3), QueueCapacity(name="new", capacity=5))
    assert found.is_capped


def test_claim_is_capped_only_with_a_cap() -> None:
    free, capped = (plan_claim([UNKNOWN], [IDLE], ClaimLimits(cluster_wide_cap=cap), claimed=0) for cap in (None, 3))

    assert free is not None
    assert capped is not None
    assert not free.is_capped
    assert capped.is_capped


def test_worker_without_children_or_queues_claims_nothing() -> None:
    assert plan_claim([UNKNOWN], [], ClaimLimits(), claimed=0) is None
    assert plan_claim([], [IDLE], ClaimLimits(), claimed=0) is None


@given(st.lists(queues, max_size=4, unique_by=lambda queue: queue.name), st.lists(children), limits, st.integers(0, 20))
def test_plan_is_never_negative_or_above_a_limit(
    served: list[ServedQueue], children_loads: list[ChildLoad], settings: ClaimLimits, claimed: int
) -> None:
    found = plan_claim(served, children_loads, settings, claimed=claimed)
    if found is None:
        return

    assert 0 <= found.startable <= found.limit
    assert 0 < found.limit <= sum(queue.capacity for queue in found.queues)
    assert found.limit <= (settings.cluster_wide_cap or found.limit)
    assert not settings.max_claim_per_worker or found.limit + claimed <= settings.max_claim_per_worker
    for queue in found.queues:
        assert 0 < queue.capacity <= (settings.max_claim_batch or queue.capacity)
        assert queue.cap is None or queue.capacity <= queue.cap
