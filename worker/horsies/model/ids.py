"""Ids of tasks and runs: UUIDv7, whose order is the order in which they were made."""

from __future__ import annotations

import re
from uuid import UUID

RANDOM_BYTES = 10
"""How many bytes of chance `mint` wants."""

SHORT_FORM_DIGITS = 8

_TAIL_BITS = 74
_LOW_BITS = 62
_TAIL_MASK = (1 << _TAIL_BITS) - 1
_LOW_MASK = (1 << _LOW_BITS) - 1
_NODE_DIGITS = 12
_NODE_MASK = (1 << 4 * _NODE_DIGITS) - 1
_VERSION = 7 << 76
_VARIANT = 2 << 62
_CANONICAL = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def mint(time_ms: int, random_bytes: bytes, previous: UUID | None = None) -> UUID:
    """A UUIDv7 for this millisecond, greater than `previous` whatever the clock says.

    Where the clock has not moved on, or has gone back, the id is the one after `previous`: as unique as that was,
    and a run of them borrows from the next millisecond only when the tail is full.
    """
    order = (time_ms << _TAIL_BITS) | (int.from_bytes(random_bytes, "big") & _TAIL_MASK)
    if previous is not None:
        last = _order_of(previous)
        if order >> _TAIL_BITS <= last >> _TAIL_BITS:
            order = last + 1
    return UUID(int=_with_fixed_bits(order))


def series(first: UUID, count: int) -> list[str]:
    """Ids in a row, beginning with `first`, as text: what `mint` would give one by one within one millisecond."""
    start = _order_of(first)
    if (start & _NODE_MASK) + count <= _NODE_MASK:
        head, node = str(first)[:-_NODE_DIGITS], start & _NODE_MASK
        return [f"{head}{each:012x}" for each in range(node, node + count)]
    return [str(UUID(int=_with_fixed_bits(order))) for order in range(start, start + count)]


def _order_of(minted: UUID) -> int:
    """The id without its fixed bits: 48 of milliseconds, 74 of tail."""
    return (minted.int >> 80) << _TAIL_BITS | (minted.int >> 64 & 0xFFF) << _LOW_BITS | minted.int & _LOW_MASK


def _with_fixed_bits(order: int) -> int:
    clock, tail = order >> _TAIL_BITS, order & _TAIL_MASK
    return clock << 80 | _VERSION | tail >> _LOW_BITS << 64 | _VARIANT | tail & _LOW_MASK


def parse_id(text: str) -> str:
    """The id in the lower-case form in which we hold ids; `ValueError` when the text is no UUID."""
    if not _CANONICAL.fullmatch(text):
        shown = repr(text[:40] + "…" if len(text) > 40 else text)
        raise ValueError(f"{shown} is no id: expected a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057")
    return text.lower()


def short_form(task_id: str | UUID) -> str:
    """The last eight hex digits, for people; the first ones are a clock and look alike."""
    return str(task_id)[-SHORT_FORM_DIGITS:]
