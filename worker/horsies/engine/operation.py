"""A duty that may fail without holding up those beside it, and is never silently given up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from horsies.engine.backoff import is_passing
from horsies.errors import on_one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FAILURES_IN_A_ROW: Final = 3
TICKS_BETWEEN_TRIES: Final = 10
"""For an operation that has failed so often."""

logger = logging.getLogger("horsies.recovery")


class Operation:
    """Due at each tick; after three failures in a row that will not pass by themselves, at one tick in ten.

    `changed` hears its name and the error when it is slowed down, and None when it has succeeded again.
    """

    def __init__(self, name: str, *, changed: Callable[[str, str | None], None]) -> None:
        self.name = name
        self._changed = changed
        self._failures = 0
        self._left_out = 0

    async def tick(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do the work where it is due; its failure is ours."""
        if not self.is_due():
            return
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # one duty must not end the others, nor the worker
            self.failed(error)
        else:
            self.succeeded()

    def is_due(self) -> bool:
        """Whether this tick is one at which it is tried; to be asked once a tick."""
        if self._is_slow and self._left_out < TICKS_BETWEEN_TRIES - 1:
            self._left_out += 1
            return False
        self._left_out = 0
        return True

    def failed(self, error: Exception) -> None:
        if is_passing(error):
            logger.warning("%s: %s", self.name, on_one_line(error))
            return
        logger.error("%s failed", self.name, exc_info=error)
        self._failures += 1
        if self._failures == FAILURES_IN_A_ROW:
            self._changed(self.name, on_one_line(error) or type(error).__name__)

    def succeeded(self) -> None:
        if self._is_slow:
            self._changed(self.name, None)
        self._failures = 0

    @property
    def _is_slow(self) -> bool:
        return self._failures >= FAILURES_IN_A_ROW
