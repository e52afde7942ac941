"""Which child gets which of the tasks that were claimed: functions apart from coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.claiming import fitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horsies.engine.held import Held
    from horsies.engine.parts import Parts
    from horsies.engine.supervise import Child


def hand_over(parts: Parts, helds: Sequence[Held]) -> list[Held]:
    """Each to the child that its row names, or to one that suits it better; what no child has room for is given back.

    Returns the functions that were claimed for places beside coroutines and had to go back.
    """
    children = {child.pid: child for child in parts.room.children()}
    dealt = [(held, held.row.worker_pid or 0) for held in helds]
    beside = {pid for pid, child in children.items() if parts.hands.runs_coroutines(child)}
    if beside:
        dealt = _dealt_by_kind(parts, dealt, beside)
    by_child: dict[int, list[Held]] = {}
    for held, pid in dealt:
        by_child.setdefault(pid, []).append(held)
    turned_away: list[Held] = []
    for pid, theirs in by_child.items():
        child = children.get(pid)
        back = theirs if child is None else parts.hands.hand_over(child, theirs)
        parts.returns.add(back)
        if pid in beside:
            turned_away += [held for held in back if not parts.hands.is_async(held)]
    return turned_away


def _dealt_by_kind(parts: Parts, dealt: Sequence[tuple[Held, int]], beside: set[int]) -> list[tuple[Held, int]]:
    """Coroutines first: a child takes what it is handed in this order, up to the first that does not fit."""
    are_async = [parts.hands.is_async(held) for held, _ in dealt]
    pids = fitted([pid for _, pid in dealt], beside, are_async)
    anew = [(held, pid) for (held, _), pid in zip(dealt, pids, strict=True)]
    return sorted(anew, key=lambda each: each[1] in beside and not parts.hands.is_async(each[0]))


def paired(parts: Parts, waiting: Iterable[Held], children: Sequence[Child]) -> Iterator[tuple[Held, int]]:
    """Each with a place that suits it, in order: a function that finds none keeps those behind it waiting too."""
    places = parts.room.places(children)
    free, beside = iter(places.free), iter(places.beside)
    for held in waiting:
        pid = next(free, None)
        if pid is None and parts.hands.is_async(held):
            pid = next(beside, None)
        if pid is None:
            return
        yield held, pid
