"""Workers on the terminal and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from horsies.model.ids import short_form
from horsies_ops.cli.ages import age

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from horsies.model.broker import WorkerPong
    from horsies_ops.reads.workers import WorkerRow

COLUMNS: Final = ("id", "host:pid", "queues", "run/proc", "claimed", "cpu", "memory", "beat", "up", "state")
ANSWERS: Final = ("id", "host:pid", "latency", "answer")

_PLAIN = (
    "hostname", "pid", "version", "state", "queues", "processes", "started_at", "last_heartbeat_at", "is_silent",
    "is_stale", "tasks_running", "tasks_claimed", "cpu_percent", "memory_mb", "listener", "listening_since",
    "amnesty_until", "last_pass_at", "disabled_operations", "warnings",
)  # fmt: skip


def document(worker: WorkerRow) -> dict[str, Any]:
    """What `workers list --json` prints of one."""
    plain = {name: getattr(worker, name) for name in _PLAIN}
    return {"id": worker.worker_id, **plain, "heartbeat_age_s": worker.heartbeat_age}


def cells(worker: WorkerRow, *, full: bool) -> tuple[str, ...]:
    return (
        str(worker.worker_id) if full else short_form(worker.worker_id),
        f"{worker.hostname}:{worker.pid}",
        ",".join(worker.queues),
        f"{worker.tasks_running}/{worker.processes}",
        str(worker.tasks_claimed),
        "-" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f}%",
        "-" if worker.memory_mb is None else f"{worker.memory_mb:.0f} MB",
        age(worker.heartbeat_age),
        age(worker.last_heartbeat_at + worker.heartbeat_age - worker.started_at),
        worker.standing,
    )


def warnings_of(workers: Sequence[WorkerRow]) -> Iterator[str]:
    """What is wrong with those that nobody has given up, each by its name."""
    for worker in filter(lambda each: not each.is_given_up, workers):
        who = f"worker {short_form(worker.worker_id)} on {worker.hostname}"
        if worker.is_silent:
            yield f"{who}: silent since {worker.last_heartbeat_at:%H:%M:%S}Z, and may be dead"
            continue
        yield from (f"{who}: {warning}" for warning in worker.warnings)
        yield from (
            f"{who}: {operation} keeps failing, and is tried rarely" for operation in worker.disabled_operations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A worker that should be alive, or that answered."""

    worker_id: UUID
    row: WorkerRow | None
    pong: WorkerPong | None

    @property
    def has_answered(self) -> bool:
        return self.pong is not None

    def document(self) -> dict[str, Any]:
        who = self.pong or self.row
        return {
            "id": self.worker_id,
            "hostname": who.hostname if who else None,
            "pid": who.pid if who else None,
            "answered": self.has_answered,
            "latency_ms": self.pong.latency_ms if self.pong else None,
        }

    def cells(self) -> tuple[str, ...]:
        who = self.pong or self.row
        return (
            short_form(self.worker_id),
            f"{who.hostname}:{who.pid}" if who else "",
            f"{self.pong.latency_ms:.1f} ms" if self.pong else "-",
            "yes" if self.has_answered else "none",
        )
