"""What a worker has run, added up for its log: a line a minute, however much it does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

TOLD_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Attempts whose end is stored; those to be tried again have not failed yet."""

    count: int = 0
    failed: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Tasks of one name that failed since that was last told, and the last of them."""

    task_name: str
    count: int
    error_code: str | None
    task_id: str
    message: str | None


class Account:
    """Adds up what was run: in all, since it was last told, and what failed by its name.

    Instants are seconds of any steady clock.
    """

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._told = Ran()
        self._failing: dict[str, Failing] = {}
        self._told_at: dict[str, float] = {}

    def ended(self, status: TaskStatus, count: int) -> None:
        self._ended[status] += count

    def failed(self, task_name: str, *, error_code: str | None, task_id: str, message: str | None) -> None:
        before = self._failing.get(task_name)
        count = 1 if before is None else before.count + 1
        self._failing[task_name] = Failing(
            task_name=task_name, count=count, error_code=error_code, task_id=task_id, message=message
        )

    @property
    def in_all(self) -> Ran:
        ended = self._ended
        return Ran(count=ended.total(), failed=ended[TaskStatus.FAILED], retried=ended[TaskStatus.PENDING])

    def take(self) -> Ran | None:
        """What was run since this was last asked; None for nothing."""
        now, before = self.in_all, self._told
        self._told = now
        if now.count == before.count:
            return None
        return Ran(
            count=now.count - before.count,
            failed=now.failed - before.failed,
            retried=now.retried - before.retried,
        )

    def take_failing(self, now: float) -> Iterator[Failing]:
        """Each name that failed and was not told within the last minute; the others wait."""
        # A name that has been quiet for a minute need not be remembered.
        self._told_at = {name: at for name, at in self._told_at.items() if now - at < TOLD_EVERY_S}
        for name in [name for name in self._failing if name not in self._told_at]:
            self._told_at[name] = now
            yield self._failing.pop(name)
