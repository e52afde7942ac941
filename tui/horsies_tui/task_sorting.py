"""The orders that loaded tasks can be put in."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from horsies_tui.task_columns import silence, waited
from horsies_tui.widgets.sort_picker import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from horsies_ops.reads.tasks import TaskSummary

NEWEST_FIRST: Final = Order(by="AGE", is_descending=False)
"""The order in which pages are read, and the only one that holds beyond what is loaded."""

NAMES: Final = ("AGE", "TASK", "QUEUE", "STATUS", "ATT", "HB", "WAIT", "PRIO", "ERROR")

_NEVER: Final = timedelta(-1)


def sorts(now: datetime) -> Mapping[str, Callable[[TaskSummary], Any]]:
    """What each order goes by; what a task does not have counts as less than anything that one has."""
    return {
        "AGE": lambda task: -task.id.int,
        "TASK": lambda task: task.name,
        "QUEUE": lambda task: task.queue,
        "STATUS": lambda task: task.status,
        "ATT": lambda task: task.attempt_count,
        "HB": lambda task: silence(task, now) or _NEVER,
        "WAIT": lambda task: waited(task, now) or _NEVER,
        "PRIO": lambda task: task.priority,
        "ERROR": lambda task: task.error_code or "",
    }
