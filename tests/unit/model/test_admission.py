"""Claims for places beside coroutines: a function that comes of one is not asked for again and again."""

from __future__ import annotations

from uuid import UUID, uuid4

from horsies.model.capacity import FIRST_PAUSE_S, LONGEST_PAUSE_S, Admission

FUNCTION = uuid4()


def widths(admission: Admission, *, claims: int) -> list[int]:
    """What may be claimed before each of so many claims that bring nothing but coroutines."""
    found: list[int] = []
    for _ in range(claims):
        found.append(admission.most(0.0))
        admission.found([uuid4()], is_last_async=True, now=0.0)
    return found


def shut(*, at: float = 0.0) -> Admission:
    admission = Admission()
    widths(admission, claims=3)
    admission.turned_away(FUNCTION, at)
    return admission


def found_at(admission: Admission, now: float, *task_ids: UUID, is_last_async: bool) -> int:
    admission.found(task_ids, is_last_async=is_last_async, now=now)
    return admission.most(now)


def test_the_first_claim_is_for_one_task_and_each_coroutine_dares_more() -> None:
    assert widths(Admission(), claims=4) == [1, 2, 4, 8]


def test_functions_that_found_a_place_change_nothing() -> None:
    assert found_at(Admission(), 0.0, FUNCTION, is_last_async=False) == 1


def test_after_a_function_was_turned_away_nothing_is_claimed_for_a_while() -> None:
    admission = shut()
    assert [admission.most(now) for now in (0.0, FIRST_PAUSE_S - 0.1, FIRST_PAUSE_S)] == [0, 0, 1]


def test_coroutines_that_are_claimed_for_other_places_do_not_end_the_pause() -> None:
    assert found_at(shut(), 1.0, uuid4(), is_last_async=True) == 0


def test_the_pause_ends_when_the_function_has_found_a_place_here() -> None:
    assert found_at(shut(), 1.0, uuid4(), FUNCTION, is_last_async=False) == 1


def test_the_pause_ends_for_good_when_another_worker_has_taken_the_function() -> None:
    admission = shut()
    assert found_at(admission, FIRST_PAUSE_S, uuid4(), is_last_async=True) == 2
    assert admission.turned_away(uuid4(), FIRST_PAUSE_S) == FIRST_PAUSE_S


def test_a_function_that_nobody_can_take_is_asked_for_more_and_more_seldom() -> None:
    admission = shut()
    pauses = [admission.turned_away(FUNCTION, 0.0) for _ in range(5)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * FIRST_PAUSE_S, LONGEST_PAUSE_S)
