"""What has to be done to keep the house in order: how much of it there is, who does it, and when it was last done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from horsies.model.retention import Category
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies_ops.reads.durations import duration_text
from horsies_ops.reads.filter import TaskFilter
from horsies_tui.format import age, number, short_age
from horsies_tui.widgets.columns import Cell, Column, Tone
from horsies_tui.widgets.row_list import Heading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from horsies.model.retention import Cleaned
    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.reads.upkeep import Upkeep


class Part(StrEnum):
    """By which command it is done."""

    SWEEP = "sweep"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """One line. What is not known yet is None."""

    key: str
    part: Part
    what: str
    matches: int | None = None
    oldest: timedelta | None = None
    last_at: datetime | None = None
    is_automatic: bool | None = None
    behind: TaskFilter | None = None
    """The rows it would take, where they are tasks that a filter can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What has been read so far."""

    sweep: SweepReport | None = None
    cleanup: Cleaned | None = None
    upkeep: Upkeep | None = None


_KEPT: Final = {
    "terminal records": (Category.TASKS, Category.WORKFLOWS),
    "heartbeats": (Category.HEARTBEATS,),
    "worker snapshots": (Category.WORKER_STATES, Category.WORKERS),
    "events": (Category.EVENTS,),
    "operator log": (Category.AUDIT,),
}


def chores(known: Known, now: datetime) -> list[Chore | Heading]:
    """Every line, in the order of the screen."""
    return [*_sweep(known), Heading("Retention, as horsies cleanup"), *_retention(known, now)]


def _sweep(known: Known) -> Iterator[Chore]:
    report, upkeep = known.sweep, known.upkeep
    config = upkeep.config if upkeep else None
    limits = report.thresholds if report else None
    last_at = upkeep.last_pass_at if upkeep else None
    lines = (
        (
            f"requeue stale CLAIMED  > {age(limits and limits.claimed)}",
            TaskStatus.CLAIMED,
            "auto_requeue_stale_claimed",
        ),
        (f"recover stale RUNNING  > {age(limits and limits.running)}", TaskStatus.RUNNING, "auto_fail_stale_running"),
        ("expire PENDING past good_until", TaskStatus.PENDING, None),
    )
    for what, state, switch in lines:
        due = [task for task in report.tasks if task.is_due and task.state is state] if report else None
        yield Chore(
            key=f"sweep {state}",
            part=Part.SWEEP,
            what=what,
            matches=None if due is None else len(due),
            oldest=max(map(_quiet, due or ()), default=None),
            last_at=last_at,
            is_automatic=config is not None and (switch is None or getattr(config, switch)) if upkeep else None,
        )
    yield Chore(
        key="sweep workflows",
        part=Part.SWEEP,
        what="repair workflows out of step",
        matches=len(report.workflows) if report else None,
        last_at=last_at,
        is_automatic=config is not None if upkeep else None,
    )


def _quiet(task: SweptTask) -> timedelta:
    return task.last_beat_age or task.overdue_by or timedelta(0)


def _retention(known: Known, now: datetime) -> Iterator[Chore]:
    upkeep = known.upkeep
    for name, categories in _KEPT.items():
        portions = [each for each in known.cleanup.portions if each.category in categories] if known.cleanup else []
        window = portions[0].window if portions else None
        oldest_at = min((each.oldest_at for each in portions if each.oldest_at is not None), default=None)
        # Beats go at each pass of a worker, the rest once an hour, and that only shows where something went.
        last_at = upkeep and (upkeep.last_pass_at if name == "heartbeats" else upkeep.last_retention_at)
        yield Chore(
            key=f"cleanup {name}",
            part=Part.CLEANUP,
            what=f"delete {name} older than {duration_text(window)}" if window else f"keep {name}",
            matches=sum(each.rows for each in portions) if window else None,
            oldest=None if oldest_at is None else now - oldest_at,
            last_at=last_at if window else None,
            is_automatic=upkeep.config is not None and window is not None if upkeep else None,
            behind=_ended(window) if window and Category.TASKS in categories else None,
        )


def _ended(window: timedelta) -> TaskFilter:
    return TaskFilter(statuses=tuple(sorted(TASK_TERMINAL_STATES)), older_than=window)


def _matches(chore: Chore) -> Cell:
    if chore.matches is None:
        return Cell("-", Tone.DIM)
    return Cell(number(chore.matches), Tone.WARN if chore.matches and chore.part is Part.SWEEP else Tone.PLAIN)


def _last(chore: Chore, now: datetime) -> Cell:
    return Cell("-" if chore.last_at is None else f"{short_age(now - chore.last_at)} ago", Tone.DIM)


def _policy(chore: Chore) -> Cell:
    if chore.is_automatic is None:
        return Cell("")
    return Cell("auto", Tone.GOOD) if chore.is_automatic else Cell("by hand", Tone.WARN)


CHORE_COLUMNS: Final[tuple[Column[Chore], ...]] = (
    Column(title="SWEEP, as horsies sweep", width=38, grows=1, cell=lambda chore, _: Cell(chore.what)),
    Column(title="MATCHES", width=9, right=True, cell=lambda chore, _: _matches(chore)),
    Column(title="OLDEST", width=7, right=True, cell=lambda chore, _: Cell(age(chore.oldest))),
    Column(title="LAST RUN", width=8, right=True, ticks=True, cell=_last),
    Column(title="POLICY", width=8, cell=lambda chore, _: _policy(chore)),
)
