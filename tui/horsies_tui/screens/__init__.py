"""The screens of the TUI, loaded on demand.

To add a screen:

1. Subclass `MainScreen`, `ProposingScreen` if it can change anything, or `TaskActionScreen` if it acts on tasks. Set
   `place`, set `BINDINGS` to `[*bindings(place)]` and compose the `body`. The base class adds header, tabs, connection
   notice, status line and key line.
2. Return its queries from `live_queries`: a name, a coroutine function taking the source, the topics that invalidate
   the result, and a `min_interval_s` for expensive ones. They run while the screen is visible. A new read is added to
   `DataSource` and to the simulated system in `demo/`.
3. Draw each result in `show_result(name, value)`. Results are immutable; pass rows to a `RowList`, which repaints only
   what changed. Set the status line with `set_status`. All text from the database goes through `safe`, `fit` or
   `sanitize`.
4. Write one method per action of the place (`action_op_pause` for `op.pause`). Changes to the database go through
   `propose` with a `Proposal`; their keys are disabled in read-only sessions and while offline. Esc calls `step_back`.
5. Compute ages from `context.clock.now()` when drawing, in a column that `ticks`; `tick()` runs once a second.
6. Add the class to `SCREENS` below, which gives it a tab, a number key, and entries in the palette and the help.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from horsies_tui.keys import Place

if TYPE_CHECKING:
    from horsies_tui.screens.base import MainScreen

SCREENS: Final = {
    Place.DASHBOARD: "dashboard.DashboardScreen",
    Place.QUEUES: "queues.QueuesScreen",
    Place.TASKS: "tasks.screen.TasksScreen",
    Place.STALE: "stale.StaleScreen",
    Place.WORKERS: "workers.WorkersScreen",
    Place.WORKFLOWS: "workflows.screen.WorkflowsScreen",
    Place.SCHEDULES: "schedules.SchedulesScreen",
    Place.EVENTS: "events.EventsScreen",
    Place.MAINTENANCE: "maintenance.MaintenanceScreen",
}
"""Module and class names: importing all screens would delay the first paint."""


def screen_class(place: Place) -> type[MainScreen]:
    """Return the screen class of a place, importing its module on first use."""
    module, _, name = SCREENS[place].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def load_all() -> None:
    """Import every screen module ahead of its first visit."""
    for place in SCREENS:
        screen_class(place)
    importlib.import_module(f"{__name__}.tasks.detail")
