"""Claims for places beside coroutines: a function that comes of one is not asked for again and again."""

from __future__ import annotations

from uuid import UUID, uuid4

from horsies.model.capacity import FIRST_ASYNC_PAUSE_S, MAX_ASYNC_PAUSE_S, AsyncAdmission

FUNCTION = uuid4()


def widths(admission: AsyncAdmission, *, claims: int) -> list[int]:
    """What may be claimed before each of so many claims that bring nothing but coroutines."""
    found: list[int] = []
    for _ in range(claims):
        found.append(admission.allowed(0.0))
        admission.on_claimed([uuid4()], is_last_async=True, now=0.0)
    return found


def shut(*, at: float = 0.0) -> AsyncAdmission:
    admission = AsyncAdmission()
    widths(admission, claims=3)
    admission.on_rejected(FUNCTION, at)
    return admission


def found_at(admission: AsyncAdmission, now: float, *task_ids: UUID, is_last_async: bool) -> int:
    admission.on_claimed(task_ids, is_last_async=is_last_async, now=now)
    return admission.allowed(now)


def test_the_first_claim_is_for_one_task_and_each_coroutine_dares_more() -> None:
    assert widths(AsyncAdmission(), claims=4) == [1, 2, 4, 8]


def test_functions_that_found_a_place_change_nothing() -> None:
    assert found_at(AsyncAdmission(), 0.0, FUNCTION, is_last_async=False) == 1


def test_after_a_function_was_turned_away_nothing_is_claimed_for_a_while() -> None:
    admission = shut()
    assert [admission.allowed(now) for now in (0.0, FIRST_ASYNC_PAUSE_S - 0.1, FIRST_ASYNC_PAUSE_S)] == [0, 0, 1]


def test_coroutines_that_are_claimed_for_other_places_do_not_end_the_pause() -> None:
    assert found_at(shut(), 1.0, uuid4(), is_last_async=True) == 0


def test_the_pause_ends_when_the_function_has_found_a_place_here() -> None:
    assert found_at(shut(), 1.0, uuid4(), FUNCTION, is_last_async=False) == 1


def test_the_pause_ends_for_good_when_another_worker_has_taken_the_function() -> None:
    admission = shut()
    assert found_at(admission, FIRST_ASYNC_PAUSE_S, uuid4(), is_last_async=True) == 2
    assert admission.on_rejected(uuid4(), FIRST_ASYNC_PAUSE_S) == FIRST_ASYNC_PAUSE_S


def test_a_function_that_nobody_can_take_is_asked_for_more_and_more_seldom() -> None:
    admission = shut()
    pauses = [admission.on_rejected(FUNCTION, 0.0) for _ in range(5)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * FIRST_ASYNC_PAUSE_S, MAX_ASYNC_PAUSE_S)
