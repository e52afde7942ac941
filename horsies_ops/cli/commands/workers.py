"""`horsies workers`: list and ping workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from horsies.errors import ExitCode
from horsies.model.result import WorkerPong
from horsies.model.settings import AppConfig
from horsies.model.task import short_form
from horsies_ops.cli.ids import resolve_worker_id
from horsies_ops.cli.option_types import duration_option, id_option
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import format_age, print_json, print_table, print_warning
from horsies_ops.ops import open_ops
from horsies_ops.reads.workers import WorkerRow

app = group("workers")

DEFAULT_TIMEOUT: Any = "2s"  # a string: typer parses defaults like arguments, and shows them in the help
COLUMNS: Final = ("id", "host:pid", "queues", "run/proc", "claimed", "cpu", "memory", "heartbeat", "up", "state")
PING_COLUMNS: Final = ("id", "host:pid", "latency", "answer")

_DOCUMENT_FIELDS = (
    "hostname",
    "pid",
    "version",
    "state",
    "queues",
    "processes",
    "started_at",
    "last_heartbeat_at",
    "is_silent",
    "is_stale",
    "tasks_running",
    "tasks_claimed",
    "cpu_percent",
    "memory_mb",
    "listener",
    "listening_since",
    "outage_grace_until",
    "last_pass_at",
    "disabled_operations",
    "warnings",
)


Threshold = Annotated[
    timedelta | None,
    duration_option("Treat workers silent for longer than this as stale [default: recovery.worker_stale_threshold_ms]"),
]


@app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    stale: Annotated[bool, typer.Option("--stale", help="Only stale workers.")] = False,
    threshold: Threshold = None,
    full: Annotated[bool, typer.Option("--full", help="Show full ids.")] = False,
    json: JsonOption = False,
) -> None:
    """List workers that have not stopped, latest heartbeat first."""
    workers = [worker for worker in asyncio.run(_read_workers(options, threshold)) if worker.is_stale or not stale]
    warnings = list(worker_warnings(workers))
    if json:
        print_json({"workers": [worker_document(worker) for worker in workers], "warnings": warnings})
        return
    if workers:
        print_table(COLUMNS, [worker_cells(worker, full=full) for worker in workers], right=COLUMNS[3:9])
    else:
        options.print_message("no stale workers" if stale else "no workers")
    for warning in () if options.quiet else warnings:
        print_warning(warning)


@app.command()
@with_global_options
def ping(
    options: GlobalOptions,
    *,
    worker: Annotated[str | None, id_option("Only this worker.")] = None,
    timeout: Annotated[timedelta, duration_option("Time to wait for answers.")] = DEFAULT_TIMEOUT,
    json: JsonOption = False,
) -> int:
    """Ping live workers. Exit 1 if one does not answer."""
    results = asyncio.run(_ping(options, worker, timeout))
    if json:
        print_json({"workers": [result.document() for result in results]})
    elif results:
        print_table(PING_COLUMNS, [result.cells() for result in results], right=("latency",))
    else:
        options.print_message(f"no live worker {short_form(worker)}" if worker else "no live workers")
    is_missing = worker is not None and not results
    return ExitCode.FAILED if is_missing or any(not result.has_answered for result in results) else ExitCode.DONE


def worker_document(worker: WorkerRow) -> dict[str, Any]:
    """Return the entry of one worker in `workers list --json`."""
    fields = {name: getattr(worker, name) for name in _DOCUMENT_FIELDS}
    return {"id": worker.worker_id, **fields, "heartbeat_age_s": worker.heartbeat_age}


def worker_cells(worker: WorkerRow, *, full: bool) -> tuple[str, ...]:
    return (
        str(worker.worker_id) if full else short_form(worker.worker_id),
        f"{worker.hostname}:{worker.pid}",
        ",".join(worker.queues),
        f"{worker.tasks_running}/{worker.processes}",
        str(worker.tasks_claimed),
        "-" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f}%",
        "-" if worker.memory_mb is None else f"{worker.memory_mb:.0f} MB",
        format_age(worker.heartbeat_age),
        format_age(worker.last_heartbeat_at + worker.heartbeat_age - worker.started_at),
        worker.display_state,
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
        yield from (f"{subject}: {warning}" for warning in worker.warnings)
        yield from (
            f"{subject}: {operation} keeps failing and is retried rarely" for operation in worker.disabled_operations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PingResult:
    """A worker that was pinged; `pong` is None if it did not answer, `row` if it was not known to be live."""

    worker_id: UUID
    row: WorkerRow | None
    pong: WorkerPong | None

    @property
    def has_answered(self) -> bool:
        return self.pong is not None

    def document(self) -> dict[str, Any]:
        source = self.pong or self.row
        return {
            "id": self.worker_id,
            "hostname": source.hostname if source else None,
            "pid": source.pid if source else None,
            "answered": self.has_answered,
            "latency_ms": self.pong.latency_ms if self.pong else None,
        }

    def cells(self) -> tuple[str, ...]:
        source = self.pong or self.row
        return (
            short_form(self.worker_id),
            f"{source.hostname}:{source.pid}" if source else "",
            f"{self.pong.latency_ms:.1f} ms" if self.pong else "-",
            "yes" if self.has_answered else "none",
        )


def _stale_threshold(settings: AppConfig, given: timedelta | None) -> timedelta:
    return given or timedelta(milliseconds=settings.recovery.worker_stale_threshold_ms)


async def _read_workers(options: GlobalOptions, threshold: timedelta | None) -> Sequence[WorkerRow]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        return await ops.list_active_workers(_stale_threshold(ops.settings, threshold))


async def _ping(options: GlobalOptions, id_text: str | None, wait: timedelta) -> list[PingResult]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        worker_id = None if id_text is None else await resolve_worker_id(ops, id_text)
        alive = {
            worker.worker_id: worker
            for worker in await ops.list_active_workers(_stale_threshold(ops.settings, None))
            if not worker.is_presumed_dead and worker_id in {None, worker.worker_id}
        }
        # With as many answers as live workers there is nothing left to wait for.
        pongs = await ops.ping_workers(within=wait, worker_id=worker_id, min_responses=len(alive) or None)
    answers = {UUID(pong.worker_id): pong for pong in pongs}
    return [PingResult(worker_id=key, row=alive.get(key), pong=answers.get(key)) for key in alive | answers]
