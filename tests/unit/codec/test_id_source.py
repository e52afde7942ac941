from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from horsies.codec.ids import IdSource

if TYPE_CHECKING:
    from uuid import UUID


def test_ids_rise() -> None:
    source = IdSource()
    ids = [source.next() for _ in range(10_000)]

    assert ids == sorted(set(ids))


def test_threads_share_one_rising_series() -> None:
    source = IdSource()

    def draw(_: int) -> list[UUID]:
        return [source.next() for _ in range(2_000)]

    with ThreadPoolExecutor(4) as pool:
        series = list(pool.map(draw, range(4)))

    assert all(ids == sorted(ids) for ids in series)
    assert len({each for ids in series for each in ids}) == 8_000


def test_a_signal_handler_may_take_an_id_in_the_middle_of_another(request: pytest.FixtureRequest) -> None:
    source = IdSource()
    taken: list[str] = []

    def take(_number: int, _frame: object) -> None:
        taken.append(source.text())

    before = signal.signal(signal.SIGALRM, take)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    ids = [source.text() for _ in range(100_000)]
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert taken
    assert ids == sorted(ids)
    assert len({*ids, *taken}) == len(ids) + len(taken)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_goes_its_own_way_even_when_the_lock_was_held() -> None:
    source = IdSource()
    source.next()
    reading, writing = os.pipe()

    with source._lock:
        child = os.fork()
        if child == 0:
            os.write(writing, b"".join(source.next().bytes for _ in range(50)))
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sent = pipe.read()

    theirs = {sent[start : start + 16] for start in range(0, len(sent), 16)}
    ours = {source.next().bytes for _ in range(50)}
    assert len(theirs) == len(ours) == 50
    assert not theirs & ours


def test_a_series_takes_its_place_among_single_ids() -> None:
    source = IdSource()
    ids = [str(source.next()), *source.take(1000), str(source.next()), *source.take(0), str(source.next())]
    assert sorted(set(ids)) == ids
