"""The screens of the TUI, loaded on demand.

To add a screen:

1. Subclass `MainScreen` with the `scope` of its keys and compose the `body`. The base class adds header, tabs,
   connection notice, status line and key line.
2. Return its queries from `live_queries`: a name, a coroutine function taking the source, the topics that invalidate
   the result, and a `min_interval_s` for expensive ones. They run while the screen is visible. A new read is added to
   `DataSource` and to the simulated system in `demo/`.
3. Draw the result of each query in its `on_result`. Results are immutable; pass rows to a `RowList`, which repaints
   only what changed. Set the status line with `set_status`. All text from the database goes through `safe`, `fit` or
   `sanitize`.
4. Write one method per action of the scope (`action_view_sort` for `view.sort`). For those that change the
   database (`op.*`), set `proposals` and implement `proposal`: it returns what the preview shows and the operator
   confirms. Their keys are disabled in read-only sessions and while offline. Esc calls `step_back`.
5. Compute ages from `context.clock.now()` when drawing, in a column that `ticks`; `tick()` runs once a second.
6. Add it to `ScreenId`, which gives it a tab, a number key, and entries in the palette and the help, and to `SCREENS`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from horsies_tui.keys import ScreenId

if TYPE_CHECKING:
    from horsies_tui.screens.base import MainScreen

SCREENS: Final = {
    ScreenId.DASHBOARD: "dashboard.DashboardScreen",
    ScreenId.QUEUES: "queues.QueuesScreen",
    ScreenId.TASKS: "tasks.screen.TasksScreen",
    ScreenId.STALE: "stale.StaleScreen",
    ScreenId.WORKERS: "workers.WorkersScreen",
    ScreenId.WORKFLOWS: "workflows.WorkflowsScreen",
    ScreenId.SCHEDULES: "schedules.SchedulesScreen",
    ScreenId.EVENTS: "events.EventsScreen",
    ScreenId.MAINTENANCE: "maintenance.MaintenanceScreen",
}
"""Module and class names: importing all screens would delay the first paint."""


def screen_class(screen_id: ScreenId) -> type[MainScreen]:
    """Return the class of a screen, importing its module on first use."""
    module, _, name = SCREENS[screen_id].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def load_all() -> None:
    """Import every screen module ahead of its first visit."""
    for screen_id in SCREENS:
        screen_class(screen_id)
    importlib.import_module(f"{__name__}.tasks.detail")
