"""Finding what waits for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

V = TypeVar("V", bound="Hashable")


def find_cycle(starts: Iterable[V], following: Callable[[V], Iterable[V]]) -> list[V] | None:
    """A way that leads back to where it began, or None; walks without recursion, so that no chain is too long."""
    done: set[V] = set()
    for start in starts:
        way: dict[V, Iterator[V]] = {} if start in done else {start: iter(following(start))}
        while way:
            last = next(reversed(way))
            step = next((each for each in way[last] if each not in done), None)
            if step is None:
                done.add(last)
                del way[last]
            elif step in way:
                passed = list(way)
                return [*passed[passed.index(step) :], step]
            else:
                way[step] = iter(following(step))
    return None
