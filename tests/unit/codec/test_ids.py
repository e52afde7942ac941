from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

from horsies.codec import ids
from horsies.codec.ids import IdGenerator
from horsies.model import task as model_ids


def test_ids_increase() -> None:
    source = IdGenerator()
    ids = [source.next_uuid() for _ in range(10_000)]

    assert ids == sorted(set(ids))


def test_threads_share_one_increasing_sequence() -> None:
    source = IdGenerator()

    def draw(_: int) -> list[UUID]:
        return [source.next_uuid() for _ in range(2_000)]

    with ThreadPoolExecutor(4) as pool:
        series = list(pool.map(draw, range(4)))

    assert all(ids == sorted(ids) for ids in series)
    assert len({each for ids in series for each in ids}) == 8_000


def test_signal_handler_may_interrupt_id_generation(request: pytest.FixtureRequest) -> None:
    source = IdGenerator()
    taken: list[str] = []

    turn = threading.Lock()

    def take(_number: int, _frame: object) -> None:
        if turn.acquire(blocking=False):  # a signal may also come in the middle of its own handler
            taken.append(source.next_id())
            turn.release()

    before = signal.signal(signal.SIGALRM, take)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    ids = [source.next_id() for _ in range(100_000)]
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert taken
    assert ids == sorted(ids)
    assert taken == sorted(taken)
    assert len({*ids, *taken}) == len(ids) + len(taken)


def test_prepared_ids_are_dropped_after_a_later_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    source, make, taken = IdGenerator(), ids.format_ids, list[str]()

    def interrupted(first: int, count: int) -> list[str]:
        monkeypatch.setattr(ids, "format_ids", make)
        taken.append(source.next_id())
        return make(first, count)

    source.next_id()
    monkeypatch.setattr(ids, "format_ids", interrupted)
    below = source.next_id()
    assert below < taken[0] < source.next_id()


def test_text_ids_increase_in_each_thread() -> None:
    source = IdGenerator()

    def draw(_: int) -> list[str]:
        return [
            each
            for _ in range(500)
            for each in (source.next_id(), str(source.next_uuid()), *source.next_ids(2), source.next_id())
        ]

    with ThreadPoolExecutor(4) as pool:
        series = list(pool.map(draw, range(4)))

    assert all(ids == sorted(ids) for ids in series)
    assert len({each for ids in series for each in ids}) == 4 * 2_500


def test_prepared_ids_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    source, now = IdGenerator(), [100.0]
    monkeypatch.setattr(ids.time, "monotonic", lambda: now[0])
    earlier = [source.next_id() for _ in range(3)]
    monkeypatch.setattr(ids.time, "time_ns", lambda: (1 << 41) * 1_000_000)
    now[0] += ids.ID_BATCH_WINDOW_S
    assert source.next_id().startswith("02000000-0000-7")
    assert max(earlier) < "02000000"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_starts_its_own_sequence_despite_held_lock() -> None:
    source = IdGenerator()
    for _ in range(3):
        source.next_id()  # after which some are ready
    reading, writing = os.pipe()

    with source._lock:
        child = os.fork()
        if child == 0:
            os.write(writing, b"".join(UUID(source.next_id()).bytes for _ in range(50)))
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sent = pipe.read()

    theirs = {sent[start : start + 16] for start in range(0, len(sent), 16)}
    ours = {UUID(source.next_id()).bytes for _ in range(50)}
    assert len(theirs) == len(ours) == 50
    assert not theirs & ours


def test_id_batches_and_single_ids_increase_together() -> None:
    source = IdGenerator()
    ids = [
        str(source.next_uuid()),
        *source.next_ids(1000),
        str(source.next_uuid()),
        *source.next_ids(0),
        str(source.next_uuid()),
    ]
    assert sorted(set(ids)) == ids


@pytest.mark.parametrize("before", [1, 2, 17])
@pytest.mark.parametrize("meanwhile", [1, 20])
def test_interruption_at_any_step_never_duplicates_ids(before: int, meanwhile: int) -> None:
    step = 0
    while (given := _interrupted_at(step, before=before, meanwhile=meanwhile)) is not None:
        assert len(set(given)) == len(given)
        step += 1
    assert step > 10


def _interrupted_at(step: int, *, before: int, meanwhile: int) -> list[str] | None:
    """All ids that were given out where others are asked for at this step of the source; None past its end."""
    source, steps, was_there = IdGenerator(), count(), False
    given = [source.next_id() for _ in range(before)]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal was_there
        if frame.f_code.co_filename not in {ids.__file__, model_ids.__file__}:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == step:
            was_there = True
            sys.settrace(None)
            given.extend(source.next_id() for _ in range(meanwhile))
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        interrupted = source.next_id()
    finally:
        sys.settrace(tracing)
    given += [interrupted, *(source.next_id() for _ in range(40))]
    return given if was_there else None
