"""`horsies workers`: list and ping workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.errors import ExitCode
from horsies.model.task import short_form
from horsies.model.text import format_age
from horsies_ops.cli.option_types import FullOption, duration_option, id_option, resolve_worker_id
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import TableColumn, print_warnings, row_document, show_rows

if TYPE_CHECKING:
    from horsies.model.result import WorkerPong
    from horsies_ops.ops import Ops
    from horsies_ops.reads.workers import WorkerRow

workers_app = group("workers")

DEFAULT_TIMEOUT: Any = "2s"  # a string: typer parses defaults like arguments, and shows them in the help
Threshold = Annotated[
    timedelta | None,
    duration_option("Treat workers silent for longer than this as stale [default: recovery.worker_stale_threshold_ms]"),
]


@workers_app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    stale: Annotated[bool, typer.Option("--stale", help="Only workers without a recent heartbeat.")] = False,
    threshold: Threshold = None,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """List workers and their last heartbeat.

    Example: horsies workers list --stale
    """
    workers = [
        worker
        for worker in options.read(lambda ops: ops.list_active_workers(threshold))
        if worker.is_stale or not stale
    ]
    warnings = list(worker_warnings(workers))
    show_rows(
        options,
        "workers",
        workers,
        _columns(full=full),
        json=json,
        document=lambda worker: row_document(worker, worker_id="id"),
        empty="no stale workers" if stale else None,
        warnings=warnings,
    )
    print_warnings(options, () if json else warnings)


@workers_app.command()
@with_global_options
def ping(
    options: GlobalOptions,
    *,
    worker: Annotated[str | None, id_option("Only this worker.")] = None,
    timeout: Annotated[timedelta, duration_option("Time to wait for answers.")] = DEFAULT_TIMEOUT,
    json: JsonOption = False,
) -> int:
    """Ask every live worker for an answer.

    Exit 1 if one does not answer.

    Example: horsies workers ping --timeout 5s
    """
    results = options.read(lambda ops: _ping(ops, worker, timeout))
    empty = f"no live worker {short_form(worker)}" if worker else "no live workers"
    show_rows(options, "workers", results, PING_COLUMNS, json=json, document=PingResult.document, empty=empty)
    is_missing = worker is not None and not results
    return ExitCode.FAILED if is_missing or any(not result.has_answered for result in results) else ExitCode.DONE


def _columns(*, full: bool) -> tuple[TableColumn[WorkerRow], ...]:
    return (
        TableColumn("id", lambda worker: str(worker.worker_id) if full else short_form(worker.worker_id)),
        TableColumn("host:pid", lambda worker: f"{worker.hostname}:{worker.pid}"),
        TableColumn("queues", lambda worker: ",".join(worker.queues)),
        TableColumn("run/proc", lambda worker: f"{worker.tasks_running}/{worker.processes}", right=True),
        TableColumn("claimed", lambda worker: str(worker.tasks_claimed), right=True),
        TableColumn(
            "cpu", lambda worker: "-" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f}%", right=True
        ),
        TableColumn(
            "memory", lambda worker: "-" if worker.memory_mb is None else f"{worker.memory_mb:.0f} MB", right=True
        ),
        TableColumn("heartbeat", lambda worker: format_age(worker.heartbeat_age), right=True),
        TableColumn(
            "up",
            lambda worker: format_age(worker.last_heartbeat_at + worker.heartbeat_age - worker.started_at),
            right=True,
        ),
        TableColumn("state", lambda worker: worker.display_state),
    )


def worker_warnings(workers: Sequence[WorkerRow]) -> Iterator[str]:
    """Yield the warnings of all workers that are not presumed dead."""
    for worker in workers:
        if worker.is_presumed_dead:
            continue
        subject = f"worker {short_form(worker.worker_id)} on {worker.hostname}"
        if worker.is_silent:
            yield f"{subject}: silent since {worker.last_heartbeat_at:%H:%M:%S}Z, may be dead"
            continue
        yield from (f"{subject}: {problem}" for problem in worker.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class PingResult:
    """A worker that was pinged; `pong` is None if it did not answer, `row` if it was not known to be live."""

    worker_id: UUID
    row: WorkerRow | None
    pong: WorkerPong | None

    @property
    def has_answered(self) -> bool:
        return self.pong is not None

    @property
    def source(self) -> WorkerPong | WorkerRow | None:
        return self.pong or self.row

    def document(self) -> dict[str, Any]:
        return {
            "id": self.worker_id,
            "hostname": self.source.hostname if self.source else None,
            "pid": self.source.pid if self.source else None,
            "answered": self.has_answered,
            "latency_ms": self.pong.latency_ms if self.pong else None,
        }


PING_COLUMNS: tuple[TableColumn[PingResult], ...] = (
    TableColumn("id", lambda result: short_form(result.worker_id)),
    TableColumn("host:pid", lambda result: f"{result.source.hostname}:{result.source.pid}" if result.source else ""),
    TableColumn("latency", lambda result: f"{result.pong.latency_ms:.1f} ms" if result.pong else "-", right=True),
    TableColumn("answer", lambda result: "yes" if result.has_answered else "none"),
)


async def _ping(ops: Ops, id_text: str | None, wait: timedelta) -> list[PingResult]:
    worker_id = None if id_text is None else await resolve_worker_id(ops, id_text)
    live = {
        worker.worker_id: worker
        for worker in await ops.list_active_workers()
        if not worker.is_presumed_dead and worker_id in {None, worker.worker_id}
    }
    pongs = await ops.ping_workers(within=wait, worker_id=worker_id, expected=live)
    answers = {UUID(pong.worker_id): pong for pong in pongs}
    return [PingResult(worker_id=key, row=live.get(key), pong=answers.get(key)) for key in live | answers]
