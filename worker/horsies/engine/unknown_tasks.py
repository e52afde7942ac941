"""Tasks that this worker does not know: they return to their queue for workers that do, and claims leave them out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from horsies.store.claims import ClaimStore

REPORT_INTERVAL_S: Final = 60.0
MIN_SEARCH_INTERVAL_S: Final = 1.0
SEARCH_FACTOR: Final = 20
"""A search for known tasks is repeated after this many times its duration, so that it takes 5 % of the time."""
OWN_NOTIFICATION_S: Final = 1.0


class UnknownTasks:
    """The names that the children of this worker do not know; normally empty, and then without any cost.

    Each queue also has a time before which all due tasks are unknown: without it every claim would read all of them.
    """

    def __init__(
        self,
        claims: ClaimStore,
        queues: Sequence[str],
        *,
        on_unknown: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._claims = claims
        self._queues = queues
        self._on_unknown = on_unknown
        self._clock = clock
        self.names: set[str] = set()
        self.skip_before: Mapping[str, datetime] = {}
        self._search_at = 0.0
        self._reported_at: dict[str, float] = {}
        self._own_notifications: Counter[str] = Counter()
        self._expected_until = 0.0

    def exclude(self, name: str) -> None:
        """Claim no tasks of this name any more."""
        if name not in self.names:
            self.names.add(name)
            self._search_at = self._clock()

    def report(self, name: str) -> None:
        """A child does not know this task; reported at most once a minute."""
        now = self._clock()
        if now - self._reported_at.get(name, -REPORT_INTERVAL_S) >= REPORT_INTERVAL_S:
            self._reported_at[name] = now
            self._on_unknown(name)

    def clear(self) -> None:
        """A child has started: it may have newer code."""
        self.names.clear()
        self.skip_before = {}

    async def search(self) -> None:
        """Find out where the known tasks of each queue begin, if there are unknown ones and it was not done lately."""
        began = self._clock()
        if self.names and began >= self._search_at:
            names = sorted(self.names)
            skip_before = await self._claims.first_known(self._queues, names)
            if self.names.issuperset(names):  # otherwise cleared meanwhile, and the times hide tasks that are known now
                self.skip_before = skip_before
            took_s = self._clock() - began
            self._search_at = began + max(MIN_SEARCH_INTERVAL_S, SEARCH_FACTOR * took_s)

    def expect_own_notifications(self, queues: set[str]) -> None:
        """Unknown tasks of these queues are being released, which notifies this worker too."""
        self._own_notifications.update(queues)
        self._expected_until = self._clock() + OWN_NOTIFICATION_S

    def is_own_notification(self, queue: str) -> bool:
        """Whether a notification of new tasks is that of an own release; call it once per notification."""
        if self._clock() > self._expected_until:
            self._own_notifications.clear()
        if not self._own_notifications[queue]:
            return False
        self._own_notifications[queue] -= 1
        return True
