"""Operators' toolkit: reads, actions and the `horsies` command line.

Start with `async with horsies_ops.connect() as ops:`. Exports are imported on first use to keep the command line fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horsies.model.operator_actions import Action as Action
    from horsies.model.operator_actions import ActionOptions as ActionOptions
    from horsies.model.recovery.fleet import SweepOptions as SweepOptions
    from horsies.recovery.report import SweepReport as SweepReport
    from horsies_ops.actions.plan import Plan as Plan
    from horsies_ops.actions.plan import Selector as Selector
    from horsies_ops.actions.report import ActionReport as ActionReport
    from horsies_ops.ops import Ops as Ops
    from horsies_ops.ops import connect as connect
    from horsies_ops.reads.changes import Change as Change
    from horsies_ops.reads.changes import FeedStatus as FeedStatus
    from horsies_ops.reads.changes import Topic as Topic
    from horsies_ops.reads.filters import FilterFault as FilterFault
    from horsies_ops.reads.filters import TaskFilter as TaskFilter
    from horsies_ops.reads.filters import format_filter as format_filter
    from horsies_ops.reads.filters import parse_filter as parse_filter
    from horsies_ops.reads.search import Count as Count
    from horsies_ops.reads.tasks import TaskDetail as TaskDetail
    from horsies_ops.reads.tasks import TaskOrder as TaskOrder
    from horsies_ops.reads.tasks import TaskPage as TaskPage
    from horsies_ops.reads.tasks import TaskSummary as TaskSummary
    from horsies_ops.reads.workflows import WorkflowFilter as WorkflowFilter

_LAZY_EXPORTS = {
    "Action": "horsies.model.operator_actions",
    "ActionOptions": "horsies.model.operator_actions",
    "ActionReport": "horsies_ops.actions.report",
    "Change": "horsies_ops.reads.changes",
    "Count": "horsies_ops.reads.search",
    "FeedStatus": "horsies_ops.reads.changes",
    "FilterFault": "horsies_ops.reads.filters",
    "Ops": "horsies_ops.ops",
    "TaskOrder": "horsies_ops.reads.tasks",
    "Plan": "horsies_ops.actions.plan",
    "Selector": "horsies_ops.actions.plan",
    "SweepOptions": "horsies.model.recovery.fleet",
    "SweepReport": "horsies.recovery.report",
    "TaskDetail": "horsies_ops.reads.tasks",
    "TaskFilter": "horsies_ops.reads.filters",
    "TaskPage": "horsies_ops.reads.tasks",
    "TaskSummary": "horsies_ops.reads.tasks",
    "Topic": "horsies_ops.reads.changes",
    "WorkflowFilter": "horsies_ops.reads.workflows",
    "connect": "horsies_ops.ops",
    "format_filter": "horsies_ops.reads.filters",
    "parse_filter": "horsies_ops.reads.filters",
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
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY_EXPORTS[name]), name)
