"""Claims for coroutine-only slots pause after a sync task was rejected."""

from __future__ import annotations

from uuid import UUID, uuid4

from horsies.model.capacity import FIRST_ASYNC_PAUSE_S, MAX_ASYNC_PAUSE_S, AsyncAdmission

SYNC_TASK = uuid4()


def windows(admission: AsyncAdmission, *, claims: int) -> list[int]:
    """Return the allowed window before each of several claims that only find coroutines."""
    found: list[int] = []
    for _ in range(claims):
        found.append(admission.allowed(0.0))
        admission.on_claimed([uuid4()], is_last_async=True, now=0.0)
    return found


def paused_admission(*, at: float = 0.0) -> AsyncAdmission:
    admission = AsyncAdmission()
    windows(admission, claims=3)
    admission.on_rejected(SYNC_TASK, at)
    return admission


def allowed_after_claim(admission: AsyncAdmission, now: float, *task_ids: UUID, is_last_async: bool) -> int:
    admission.on_claimed(task_ids, is_last_async=is_last_async, now=now)
    return admission.allowed(now)


def test_window_doubles_with_every_coroutine_claimed() -> None:
    assert windows(AsyncAdmission(), claims=4) == [1, 2, 4, 8]


def test_sync_tasks_with_a_slot_change_nothing() -> None:
    assert allowed_after_claim(AsyncAdmission(), 0.0, SYNC_TASK, is_last_async=False) == 1


def test_rejected_sync_task_pauses_claims() -> None:
    admission = paused_admission()
    assert [admission.allowed(now) for now in (0.0, FIRST_ASYNC_PAUSE_S - 0.1, FIRST_ASYNC_PAUSE_S)] == [0, 0, 1]


def test_coroutines_for_other_slots_do_not_end_the_pause() -> None:
    assert allowed_after_claim(paused_admission(), 1.0, uuid4(), is_last_async=True) == 0


def test_pause_ends_when_the_rejected_task_is_claimed_here() -> None:
    assert allowed_after_claim(paused_admission(), 1.0, uuid4(), SYNC_TASK, is_last_async=False) == 1


def test_pause_ends_when_another_worker_took_the_task() -> None:
    admission = paused_admission()
    assert allowed_after_claim(admission, FIRST_ASYNC_PAUSE_S, uuid4(), is_last_async=True) == 2
    assert admission.on_rejected(uuid4(), FIRST_ASYNC_PAUSE_S) == FIRST_ASYNC_PAUSE_S


def test_repeated_rejections_lengthen_the_pause() -> None:
    admission = paused_admission()
    pauses = [admission.on_rejected(SYNC_TASK, 0.0) for _ in range(5)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * FIRST_ASYNC_PAUSE_S, MAX_ASYNC_PAUSE_S)
