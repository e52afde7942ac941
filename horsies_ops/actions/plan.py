"""What an action would do, as a value: shown, confirmed, and then carried out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from horsies.model.actions import Refusal
from horsies_ops.reads.filter_language import filter_text

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.model.actions import Action, ActionOptions
    from horsies.model.task import TaskStatus
    from horsies.store.actions import Target
    from horsies_ops.actions.selector import Selector

FEW: Final = 25
"""So many rows can be taken in at a glance."""


class Skipped(NamedTuple):
    """A task that was passed over, and the code that says why."""

    id: UUID
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """Tasks that stand alike and share a fate."""

    count: int
    status: str
    error_code: str | None
    effect: str
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One of the tasks, to recognise the others by."""

    id: UUID
    name: str
    queue: str
    status: str
    error_code: str | None
    effect: str
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an action would do, exactly, as things stood at `selector.as_of`. Nothing is changed yet."""

    action: Action
    selector: Selector
    options: ActionOptions
    matched: int
    groups: tuple[PlanGroup, ...]
    samples: tuple[Sample, ...]
    warnings: tuple[str, ...]
    targets: tuple[Target, ...]
    """Those that would be moved, as they stood."""
    refused: tuple[Skipped, ...]
    """Those that would not, the first thousand of them."""
    refused_count: int
    has_live_runs: bool = False
    """Some are running under a worker that lives."""

    @property
    def tier(self) -> int:
        """How much of a confirmation is due: 1, a key; 2, the number typed out."""
        is_small = len(self.targets) <= FEW and self.selector.filter is None and not self.has_live_runs
        return 1 if is_small else 2

    def only(self, status: TaskStatus) -> Plan:
        """The same for tasks of this status alone; the others are passed over as moved."""
        others = tuple(Skipped(each.id, Refusal.TASK_STATE_MOVED) for each in self.targets if each.status != status)
        return replace(
            self,
            targets=tuple(each for each in self.targets if each.status == status),
            refused=(*others, *self.refused),
            refused_count=len(others) + self.refused_count,
        )

    @property
    def command(self) -> str:
        """The command line that does the same, with whole ids."""
        return shlex.join(["horsies", "task", self.action, *_which(self.selector), *_how(self.options)])


def _which(selector: Selector) -> list[str]:
    if selector.filter is not None:
        return ["--filter", filter_text(selector.filter)]
    return [str(each) for each in selector.ids or ()]


def _how(options: ActionOptions) -> list[str]:
    flags = {"--include-running": options.include_running, "--kill": options.kill}
    values = {"--limit": options.limit, "--reason": options.reason}
    given = [each for name, value in values.items() if value is not None for each in (name, str(value))]
    return [*(name for name, is_set in flags.items() if is_set), *given]
