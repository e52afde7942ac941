"""The screens, and how one is made.

1. Subclass `MainScreen`, `ProposingScreen` where something can be changed, or `ActingScreen` where that is done to
   tasks: name the `place`, set `BINDINGS` to `[*bindings(place)]`, compose the `body`. The base class brings header,
   tabs, notice, status line and keys.
2. Say what the screen `wants`: each a name, a coroutine function of the source, the topics that make it out of date,
   and where it is costly a `rest_s`. The store asks while the screen is seen, once at a time, and again when touched.
   A read that `DataSource` does not have yet is a line there, and an answer of the invented system in `demo/`.
3. Show what comes in `take(name, value)`. Values are frozen; give rows to a `RowList`, which paints only what changed.
   Set the status line by `say(…)`. Draw nothing that did not go through `safe`, `fit` or `clean`.
4. Give each action of the place its method, `action_op_pause` for `op.pause`; take out of the table what a place does
   not have after all. What changes the database goes through `propose` with a `Proposal`. Keys that mutate are off by
   themselves when read-only or offline. `step_back` is for Esc.
5. Ages are reckoned from `desk.clock.now()` when drawn, in a column that `ticks`; `tick()` is called once a second.
6. Name the class in `SCREENS` below. It then has its tab, its number key and its place in palette and help.
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
"""By name: nobody should wait for eight screens before the first is painted."""


def screen_class(place: Place) -> type[MainScreen]:
    """The screen of a place; its module is loaded when it is first asked for."""
    module, _, name = SCREENS[place].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def load_all() -> None:
    """Load every screen, so that the first visit to one is as quick as the next."""
    for place in SCREENS:
        screen_class(place)
    importlib.import_module(f"{__name__}.tasks.detail")
