"""The lines below the list that say more about the worker under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.content import Content
from textual.widgets import Static

from horsies_tui.format import age, clock, day_and_time, fit, safe, short_id
from horsies_tui.glyphs import sampled, spark
from horsies_tui.task_columns import silence

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from horsies_ops.reads.tasks import TaskSummary
    from horsies_ops.reads.workers import WorkerRow
    from horsies_tui.fleet_details import WorkerDetail
    from horsies_tui.glyphs import Glyphs

CHART: Final = 30
NARROW: Final = 38
"""A task that is held takes so many columns."""


class WorkerView(Static):
    """Charts of its load, and the tasks that it holds."""

    def show(self, worker: WorkerRow | None, detail: WorkerDetail | None, *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = safe("" if worker is None else _title(worker), cells=max(self.size.width - 4, 20))
        if worker is None or detail is None or detail.worker_id != worker.worker_id:
            self.update("")
            return
        lines = [*_said(worker, now), *_charts(detail, glyphs), *self._held(worker, detail.held, now)]
        self.update(Content("\n").join([safe(line) for line in lines]))

    def _held(self, worker: WorkerRow, held: Sequence[TaskSummary], now: datetime) -> list[str]:
        """As many tasks side by side as there is room for."""
        count = worker.tasks_running + worker.tasks_claimed
        beside = max((self.size.width - 2) // NARROW, 1)
        tasks = [_task(task, now) for task in held]
        rows = ["  ".join(tasks[start : start + beside]) for start in range(0, len(tasks), beside)]
        return [f"holds {count:,}" + (" tasks:" if count != 1 else " task:") if count else "holds nothing", *rows]


def _title(worker: WorkerRow) -> str:
    who = f"{short_id(worker.worker_id)}  {worker.hostname}:{worker.pid}"
    started = day_and_time(worker.started_at)
    return f" {who}   horsies {worker.version}   started {started}   queues {', '.join(worker.queues)} "


def _said(worker: WorkerRow, now: datetime) -> list[str]:
    """What it says about itself, or no longer says, where that is worth a line."""
    lines = [f"! {operation} keeps failing, and is tried rarely" for operation in worker.disabled_operations]
    lines += [f"! {warning}" for warning in worker.warnings]
    if worker.is_silent and not worker.is_given_up:
        lines.append(f"! silent since {clock(worker.last_heartbeat_at)}: it may be dead")
    if worker.amnesty_until is not None and worker.amnesty_until > now:
        lines.append(f"amnesty until {clock(worker.amnesty_until)}: it has not listened long enough to condemn anyone")
    return lines


def _charts(detail: WorkerDetail, glyphs: Glyphs) -> list[str]:
    if not detail.history:
        return [f"no snapshot in the last {age(detail.window)}"]
    newest = detail.history[-1]
    running = [float(each.tasks_running) for each in detail.history]
    cpu = [each.cpu_percent or 0.0 for each in detail.history]
    memory = [each.memory_percent or 0.0 for each in detail.history]
    slots = float(max(each.processes for each in detail.history))
    last = f"{newest.tasks_running}/{newest.processes}   last snapshot {clock(newest.at)}"
    megabytes = "" if newest.memory_mb is None else f"   {newest.memory_mb:,.0f} MB in all"
    return [
        f"running  {spark(sampled(running, CHART), glyphs, top=slots)}  {last}",
        f"cpu      {spark(sampled(cpu, CHART), glyphs, top=100.0)}  {cpu[-1]:.0f}%",
        f"mem      {spark(sampled(memory, CHART), glyphs, top=100.0)}  {memory[-1]:.0f}%{megabytes}",
    ]


def _task(task: TaskSummary, now: datetime) -> str:
    silent = age(silence(task, now))
    return f"{short_id(task.id)} {fit(task.name, 12)} {fit(task.status, 7)} {fit(silent, 6, right=True)}"
