"""Whether a child lives: it is heard, or at least its CPU time grows."""

from __future__ import annotations


class Liveness:
    """Two clocks that only run while their owner looks.

    `silence_s` counts since the child was last heard, `idle_s` since it was last heard or seen to use its CPU. A child
    that is silent and not idle is held up in C code, say, and vouched for. Time in which the owner itself stood still
    is not held against the child.
    """

    def __init__(self) -> None:
        self.silence_s = 0.0
        self.idle_s = 0.0
        self._cpu_s = 0.0
        self._has_spoken = False

    @property
    def is_vouched_for(self) -> bool:
        return self.silence_s > self.idle_s

    def heard(self) -> None:
        self._has_spoken = True

    def tick(self, *, elapsed_s: float, due_s: float, cpu_s: float) -> None:
        """Look again, `elapsed_s` after the last time; it should have been `due_s`."""
        counted_s = min(elapsed_s, 2 * due_s)
        self.silence_s = 0.0 if self._has_spoken else self.silence_s + counted_s
        self.idle_s = 0.0 if self._has_spoken or cpu_s > self._cpu_s else self.idle_s + counted_s
        self._cpu_s = cpu_s
        self._has_spoken = False
