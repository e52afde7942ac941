"""What a worker asks for, and that it never asks for more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.capacity import ChildLoad, ClaimPass, Limits, QueueRoom, ServedQueue, fitted, next_pass

IDLE = ChildLoad()
BUSY = ChildLoad(held=1, chunks=1)
TWO_ASYNC = ChildLoad(held=2, chunks=2, is_async=True)
ONE_CHUNK = ChildLoad(held=64, chunks=1, is_short=True)
TWO_CHUNKS = ChildLoad(held=70, chunks=2, is_short=True)
UNKNOWN, QUICK, SLOW = ServedQueue(name="new"), ServedQueue(name="quick", chunk_size=64), ServedQueue(name="slow")

children = st.builds(
    ChildLoad, held=st.integers(0, 130), chunks=st.integers(0, 2), is_async=st.booleans(), is_short=st.booleans()
)
queues = st.builds(
    ServedQueue,
    name=st.sampled_from("abcd"),
    max_concurrency=st.none() | st.integers(0, 5),
    chunk_size=st.integers(1, 64),
)
limits = st.builds(
    Limits,
    prefetch_buffer=st.integers(0, 20),
    max_claim_batch=st.integers(0, 20),
    max_claim_per_worker=st.integers(0, 20),
    async_concurrency=st.integers(1, 20),
    cluster_wide_cap=st.none() | st.integers(1, 20),
)


def asked(found: ClaimPass | None) -> dict[str, int]:
    return {} if found is None else {queue.name: queue.room for queue in found.queues}


@pytest.mark.parametrize(
    ("child", "queue", "places"),
    [
        (IDLE, UNKNOWN, 1),
        (IDLE, QUICK, 128),
        (BUSY, UNKNOWN, 0),
        (BUSY, QUICK, 0),
        (TWO_ASYNC, UNKNOWN, 8),
        (TWO_ASYNC, QUICK, 8),
        (ChildLoad(held=10, is_async=True), UNKNOWN, 0),
        (ChildLoad(held=12, is_async=True), UNKNOWN, 0),
        (ONE_CHUNK, QUICK, 64),
        (ONE_CHUNK, SLOW, 1),
        (TWO_CHUNKS, QUICK, 32),
        (ChildLoad(held=97, chunks=2, is_short=True), QUICK, 0),
        (TWO_CHUNKS, SLOW, 0),
    ],
)
def test_a_child_offers_what_it_can_run_now_or_after_a_chunk(child: ChildLoad, queue: ServedQueue, places: int) -> None:
    found = next_pass([queue], [child], Limits(async_concurrency=10), claimed=0)

    assert (0 if found is None else found.limit) == places


def test_places_of_all_children_add_up() -> None:
    found = next_pass([QUICK], [IDLE, ONE_CHUNK, TWO_CHUNKS, BUSY], Limits(), claimed=0)

    assert found == ClaimPass(limit=224, startable=224, queues=(QueueRoom(name="quick", room=224),))


def test_queues_of_unknown_speed_share_the_children() -> None:
    found = next_pass([UNKNOWN, SLOW], [IDLE, IDLE], Limits(), claimed=0)

    assert found is not None
    assert (found.limit, asked(found)) == (2, {"new": 2, "slow": 2})


def test_the_place_behind_a_chunk_is_left_to_a_slow_queue_where_one_is_served() -> None:
    found = next_pass([QUICK, SLOW], [IDLE, ONE_CHUNK], Limits(), claimed=0)

    assert found is not None
    assert (found.limit, asked(found)) == (64 + 2, {"quick": 64, "slow": 2})


def test_places_for_async_tasks_are_counted_once_for_all_queues() -> None:
    found = next_pass([QUICK, SLOW], [TWO_ASYNC], Limits(async_concurrency=10), claimed=0)

    assert found is not None
    assert (found.limit, asked(found)) == (8, {"quick": 8, "slow": 8})


@pytest.mark.parametrize(("most_beside", "limit", "beside"), [(None, 9, 8), (3, 4, 3), (0, 1, 0)])
def test_places_beside_coroutines_come_last_and_only_as_many_as_allowed(
    most_beside: int | None, limit: int, beside: int
) -> None:
    found = next_pass([UNKNOWN], [IDLE, TWO_ASYNC], Limits(), claimed=0, most_beside=most_beside)

    assert found is not None
    assert (found.limit, found.startable, found.beside) == (limit, limit, beside)


def test_a_function_changes_places_with_a_coroutine_that_can_run_beside_others() -> None:
    free, busy = 1, 2

    assert fitted([free, busy], {busy}, [True, False]) == [busy, free]
    assert fitted([free, busy], {busy}, [False, True]) == [free, busy]
    assert fitted([free, busy], {busy}, [False, False]) == [free, busy]
    assert fitted([busy, busy, free], {busy}, [False, False, True]) == [free, busy, busy]


@pytest.mark.parametrize(
    ("settings", "claimed", "limit", "startable"),
    [
        (Limits(), 0, 2, 2),
        (Limits(), 2, 0, 0),
        (Limits(prefetch_buffer=4), 0, 6, 2),
        (Limits(prefetch_buffer=4), 3, 3, 0),
        (Limits(prefetch_buffer=4), 6, 0, 0),
        (Limits(max_claim_batch=1), 0, 1, 1),
        (Limits(prefetch_buffer=4, max_claim_per_worker=3), 0, 3, 2),
        (Limits(prefetch_buffer=4, max_claim_per_worker=3), 3, 0, 0),
        (Limits(cluster_wide_cap=1), 0, 1, 1),
        (Limits(cluster_wide_cap=5), 0, 2, 2),
    ],
)
def test_two_idle_children_and_the_limits(settings: Limits, claimed: int, limit: int, startable: int) -> None:
    found = next_pass([UNKNOWN], [IDLE, IDLE], settings, claimed=claimed)

    assert ((found.limit, found.startable) if found else (0, 0)) == (limit, startable)


def test_a_batch_limit_holds_for_each_queue() -> None:
    found = next_pass([UNKNOWN, SLOW], [IDLE] * 5, Limits(max_claim_batch=2), claimed=0)

    assert found is not None
    assert (found.limit, asked(found)) == (4, {"new": 2, "slow": 2})


def test_caps_are_handed_on_and_a_closed_queue_is_not_asked() -> None:
    capped, closed = ServedQueue(name="capped", max_concurrency=3), ServedQueue(name="closed", max_concurrency=0)
    found = next_pass([capped, closed, UNKNOWN], [IDLE] * 5, Limits(), claimed=0)

    assert found is not None
    assert found.queues == (QueueRoom(name="capped", room=3, cap=3), QueueRoom(name="new", room=5))
    assert found.is_capped


def test_only_a_cap_makes_a_claim_count_what_others_do() -> None:
    free, capped = (next_pass([UNKNOWN], [IDLE], Limits(cluster_wide_cap=cap), claimed=0) for cap in (None, 3))

    assert free is not None
    assert capped is not None
    assert not free.is_capped
    assert capped.is_capped


def test_a_worker_without_children_or_queues_asks_for_nothing() -> None:
    assert next_pass([UNKNOWN], [], Limits(), claimed=0) is None
    assert next_pass([], [IDLE], Limits(), claimed=0) is None


@given(st.lists(queues, max_size=4, unique_by=lambda queue: queue.name), st.lists(children), limits, st.integers(0, 20))
def test_no_budget_is_negative_or_above_a_limit(
    served: list[ServedQueue], hands: list[ChildLoad], settings: Limits, claimed: int
) -> None:
    found = next_pass(served, hands, settings, claimed=claimed)
    if found is None:
        return

    assert 0 <= found.startable <= found.limit
    assert 0 < found.limit <= sum(queue.room for queue in found.queues)
    assert found.limit <= (settings.cluster_wide_cap or found.limit)
    assert not settings.max_claim_per_worker or found.limit + claimed <= settings.max_claim_per_worker
    for queue in found.queues:
        assert 0 < queue.room <= (settings.max_claim_batch or queue.room)
        assert queue.cap is None or queue.room <= queue.cap
