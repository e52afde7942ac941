"""Workers in columns, and the orders that they can be put in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from horsies_tui.format import age, short_age, short_id
from horsies_tui.health import HOT_PERCENT, WorkerHealth, worker_health
from horsies_tui.widgets.columns import Cell, Column, Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from horsies_ops.reads.workers import WorkerRow
    from horsies_tui.glyphs import Glyphs

_TONES = {
    WorkerHealth.RUNNING: Tone.GOOD,
    WorkerHealth.STARTING: Tone.BUSY,
    WorkerHealth.HOT: Tone.WARN,
    WorkerHealth.DRAINING: Tone.DIM,
    WorkerHealth.SILENT: Tone.WARN,
    WorkerHealth.STALE: Tone.BAD,
    WorkerHealth.LOST: Tone.BAD,
    WorkerHealth.STOPPED: Tone.DIM,
}

WORKER_SORTS: Final[Mapping[str, Callable[[WorkerRow], Any]]] = {
    "HOST": lambda worker: (worker.hostname, worker.pid, worker.worker_id),
    "RUN": lambda worker: worker.tasks_running,
    "CPU": lambda worker: worker.cpu_percent or 0.0,
    "MEM": lambda worker: worker.memory_percent or 0.0,
    "BEAT": lambda worker: -worker.last_heartbeat_at.timestamp(),
    "UP": lambda worker: -worker.started_at.timestamp(),
    "STATE": lambda worker: list(WorkerHealth).index(worker_health(worker)),
}


def worker_columns(glyphs: Glyphs) -> tuple[Column[WorkerRow], ...]:
    signs = {
        WorkerHealth.HOT: glyphs.warn,
        WorkerHealth.DRAINING: glyphs.paused,
        WorkerHealth.SILENT: glyphs.warn,
        WorkerHealth.STALE: glyphs.bad,
        WorkerHealth.LOST: glyphs.bad,
    }

    def state(worker: WorkerRow, _: datetime) -> Cell:
        health = worker_health(worker)
        return Cell(f"{signs[health]} {health}" if health in signs else health, _TONES[health])

    return (
        Column(title="WORKER", width=8, cell=lambda worker, _: Cell(short_id(worker.worker_id))),
        Column(title="HOST:PID", width=12, grows=2, cell=lambda worker, _: Cell(f"{worker.hostname}:{worker.pid}")),
        Column(title="QUEUES", width=9, grows=3, rank=3, cell=lambda worker, _: Cell(",".join(worker.queues))),
        Column(
            # Tasks and processes: one that runs coroutines has several tasks.
            title="RUN/PROC", width=8, right=True,
            cell=lambda worker, _: Cell(f"{worker.tasks_running}/{worker.processes}"),
        ),
        Column(title="CLM", width=3, right=True, rank=2, cell=lambda worker, _: Cell(str(worker.tasks_claimed))),
        Column(title="CPU", width=4, right=True, rank=1, cell=lambda worker, _: _percent(worker.cpu_percent)),
        Column(title="MEM", width=4, right=True, rank=1, cell=lambda worker, _: _percent(worker.memory_percent)),
        Column(title="BEAT", width=6, right=True, ticks=True, cell=_silent),
        Column(
            title="UP", width=4, right=True, rank=4, ticks=True,
            cell=lambda worker, now: Cell(short_age(now - worker.started_at)),
        ),
        Column(title="STATE", width=10, cell=state),
    )  # fmt: skip


def _percent(value: float | None) -> Cell:
    if value is None:
        return Cell("-", Tone.DIM)
    return Cell(f"{value:.0f}%", Tone.WARN if value >= HOT_PERCENT else Tone.PLAIN)


def _silent(worker: WorkerRow, now: datetime) -> Cell:
    return Cell(age(now - worker.last_heartbeat_at), Tone.PLAIN if worker.is_alive else Tone.BAD)
