"""Ids of tasks and runs: UUIDv7, whose order is the order in which they were made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

RANDOM_BYTES = 10
"""How many bytes of chance a new id wants."""

SHORT_FORM_DIGITS = 8

_TAIL_BITS = 74
_LOW_BITS = 62
_NODE_DIGITS = 12
_TAIL_MASK = (1 << _TAIL_BITS) - 1
_LOW_MASK = (1 << _LOW_BITS) - 1
_NODE_MASK = (1 << 4 * _NODE_DIGITS) - 1
_VARIANT = 2 << _LOW_BITS
_CANONICAL = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def rising(time_ms: int, chance: Callable[[int], bytes], previous: int | None = None) -> int:
    """The order of a new id of this millisecond: 48 bits of milliseconds, 74 of tail; above `previous` whatever the
    clock says.

    Where the clock has not moved on, or has gone back, it is the one after `previous`: as unique as that was, and a run
    of them borrows from the next millisecond only when the tail is full.
    """
    if previous is not None and time_ms <= previous >> _TAIL_BITS:
        return previous + 1
    return (time_ms << _TAIL_BITS) | (int.from_bytes(chance(RANDOM_BYTES), "big") & _TAIL_MASK)


def id_text(order: int) -> str:
    """The UUIDv7 of this order, in lower case."""
    high, low = (order >> _LOW_BITS).to_bytes(8, "big").hex(), (order & _LOW_MASK | _VARIANT).to_bytes(8, "big").hex()
    return f"{high[1:9]}-{high[9:13]}-7{high[13:]}-{low[:4]}-{low[4:]}"


def id_texts(first: int, count: int) -> list[str]:
    """So many ids in a row, from this order on."""
    node = first & _NODE_MASK
    if node + count <= _NODE_MASK:
        head = id_text(first)[:-_NODE_DIGITS]
        return [f"{head}{each:012x}" for each in range(node, node + count)]
    return [id_text(order) for order in range(first, first + count)]


def parse_id(text: str) -> str:
    """The id in the lower-case form in which we hold ids; `ValueError` when the text is no UUID."""
    if not _CANONICAL.fullmatch(text):
        shown = repr(text[:40] + "…" if len(text) > 40 else text)
        raise ValueError(f"{shown} is no id: expected a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057")
    return text.lower()


def short_form(task_id: str | UUID) -> str:
    """The last eight hex digits, for people; the first ones are a clock and look alike."""
    return str(task_id)[-SHORT_FORM_DIGITS:]
