"""Generated ids increase and never repeat, even with threads, signals and forks."""

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
    generator = IdGenerator()
    ids = [generator.next_uuid() for _ in range(10_000)]

    assert ids == sorted(set(ids))


def test_threads_share_one_increasing_sequence() -> None:
    generator = IdGenerator()

    def generate(_: int) -> list[UUID]:
        return [generator.next_uuid() for _ in range(2_000)]

    with ThreadPoolExecutor(4) as pool:
        series = list(pool.map(generate, range(4)))

    assert all(ids == sorted(ids) for ids in series)
    assert len({id_ for ids in series for id_ in ids}) == 8_000


def test_signal_handler_may_interrupt_id_generation(request: pytest.FixtureRequest) -> None:
    generator = IdGenerator()
    in_between: list[str] = []

    in_handler = threading.Lock()

    def on_signal(_number: int, _frame: object) -> None:
        if in_handler.acquire(blocking=False):  # the handler itself may be interrupted by the signal
            in_between.append(generator.next_id())
            in_handler.release()

    before = signal.signal(signal.SIGALRM, on_signal)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    ids = [generator.next_id() for _ in range(100_000)]
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert in_between
    assert ids == sorted(ids)
    assert in_between == sorted(in_between)
    assert len({*ids, *in_between}) == len(ids) + len(in_between)


def test_prepared_ids_are_dropped_after_a_later_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, make, in_between = IdGenerator(), ids.format_ids, list[str]()

    def interrupted(first: int, count: int) -> list[str]:
        monkeypatch.setattr(ids, "format_ids", make)
        in_between.append(generator.next_id())
        return make(first, count)

    generator.next_id()
    monkeypatch.setattr(ids, "format_ids", interrupted)
    below = generator.next_id()
    assert below < in_between[0] < generator.next_id()


def test_text_ids_increase_in_each_thread() -> None:
    generator = IdGenerator()

    def generate(_: int) -> list[str]:
        return [
            id_
            for _ in range(500)
            for id_ in (generator.next_id(), str(generator.next_uuid()), *generator.next_ids(2), generator.next_id())
        ]

    with ThreadPoolExecutor(4) as pool:
        series = list(pool.map(generate, range(4)))

    assert all(ids == sorted(ids) for ids in series)
    assert len({id_ for ids in series for id_ in ids}) == 4 * 2_500


def test_prepared_ids_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, now = IdGenerator(), [100.0]
    monkeypatch.setattr(ids.time, "monotonic", lambda: now[0])
    earlier = [generator.next_id() for _ in range(3)]
    monkeypatch.setattr(ids.time, "time_ns", lambda: (1 << 41) * 1_000_000)
    now[0] += ids.ID_BATCH_WINDOW_S
    assert generator.next_id().startswith("02000000-0000-7")
    assert max(earlier) < "02000000"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_starts_its_own_sequence_despite_held_lock() -> None:
    generator = IdGenerator()
    for _ in range(3):
        generator.next_id()  # prepares a batch of ids
    reading, writing = os.pipe()

    with generator._lock:
        child = os.fork()
        if child == 0:
            os.write(writing, b"".join(UUID(generator.next_id()).bytes for _ in range(50)))
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()

    child_ids = {data[start : start + 16] for start in range(0, len(data), 16)}
    parent_ids = {UUID(generator.next_id()).bytes for _ in range(50)}
    assert len(child_ids) == len(parent_ids) == 50
    assert not child_ids & parent_ids


def test_id_batches_and_single_ids_increase_together() -> None:
    generator = IdGenerator()
    ids = [
        str(generator.next_uuid()),
        *generator.next_ids(1000),
        str(generator.next_uuid()),
        *generator.next_ids(0),
        str(generator.next_uuid()),
    ]
    assert sorted(set(ids)) == ids


@pytest.mark.parametrize("before", [1, 2, 17])
@pytest.mark.parametrize("meanwhile", [1, 20])
def test_interruption_at_any_step_never_duplicates_ids(before: int, meanwhile: int) -> None:
    step = 0
    while (generated := _generate_with_interruption(step, before=before, meanwhile=meanwhile)) is not None:
        assert len(set(generated)) == len(generated)
        step += 1
    assert step > 10


def _generate_with_interruption(step: int, *, before: int, meanwhile: int) -> list[str] | None:
    """Generate ids while others are requested at the generated opcode of the generator; None past its last opcode."""
    generator, steps, was_interrupted = IdGenerator(), count(), False
    generated = [generator.next_id() for _ in range(before)]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal was_interrupted
        if frame.f_code.co_filename not in {ids.__file__, model_ids.__file__}:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == step:
            was_interrupted = True
            sys.settrace(None)
            generated.extend(generator.next_id() for _ in range(meanwhile))
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        interrupted = generator.next_id()
    finally:
        sys.settrace(tracing)
    generated += [interrupted, *(generator.next_id() for _ in range(40))]
    return generated if was_interrupted else None
