"""Operators' toolkit: reads, actions and the `horsies` command line.

Start with `async with horsies_ops.connect() as ops:`. Exports are imported on first use to keep the command line fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horsies.model.operator_actions import Action, ActionOptions
    from horsies.model.recovery.fleet import SweepOptions
    from horsies.recovery.report import SweepReport
    from horsies_ops.actions.plan import Plan, Selector
    from horsies_ops.actions.report import ActionReport
    from horsies_ops.ops import Ops, connect
    from horsies_ops.reads.changes import Change, FeedStatus, Topic
    from horsies_ops.reads.filters import FilterFault, TaskFilter, format_filter, parse_filter
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.tasks import TaskDetail, TaskOrder, TaskPage, TaskSummary
    from horsies_ops.reads.workflows import WorkflowFilter

_EXPORTS_BY_MODULE = {
    "horsies.model.operator_actions": ("Action", "ActionOptions"),
    "horsies.model.recovery.fleet": ("SweepOptions",),
    "horsies.recovery.report": ("SweepReport",),
    "horsies_ops.actions.plan": ("Plan", "Selector"),
    "horsies_ops.actions.report": ("ActionReport",),
    "horsies_ops.ops": ("Ops", "connect"),
    "horsies_ops.reads.changes": ("Change", "FeedStatus", "Topic"),
    "horsies_ops.reads.filters": ("FilterFault", "TaskFilter", "format_filter", "parse_filter"),
    "horsies_ops.reads.search": ("Count",),
    "horsies_ops.reads.tasks": ("TaskDetail", "TaskOrder", "TaskPage", "TaskSummary"),
    "horsies_ops.reads.workflows": ("WorkflowFilter",),
}

__all__ = [
    "Action",
    "ActionOptions",
    "ActionReport",
    "Change",
    "Count",
    "FeedStatus",
    "FilterFault",
    "Ops",
    "Plan",
    "Selector",
    "SweepOptions",
    "SweepReport",
    "TaskDetail",
    "TaskFilter",
    "TaskOrder",
    "TaskPage",
    "TaskSummary",
    "Topic",
    "WorkflowFilter",
    "connect",
    "format_filter",
    "parse_filter",
]


def __getattr__(name: str) -> Any:
    for module, names in _EXPORTS_BY_MODULE.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
