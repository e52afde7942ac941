"""Switching sends off: while modules are imported, in checks, and wherever a program asks for it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

VARIABLE = b"HORSIES_SUPPRESS_SENDS"

# What os.environ is a view of. Asked at every send, it says at once that nothing is set; the view takes 2 µs to.
_ENVIRONMENT: Mapping[bytes, bytes] = getattr(os.environ, "_data", os.environb)


class Suppression:
    """Whether this process may send; importing counts for every app of the process."""

    imports_under_way = 0

    def __init__(self) -> None:
        self.is_asked_for = False

    def is_on(self) -> bool:
        return self.is_asked_for or Suppression.imports_under_way > 0 or _ENVIRONMENT.get(VARIABLE) == b"1"


@contextmanager
def sends_suppressed() -> Generator[None]:
    """No send of any app in this process goes out inside this block."""
    Suppression.imports_under_way += 1
    try:
        yield
    finally:
        Suppression.imports_under_way -= 1
