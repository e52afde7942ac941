"""`horsies workers`: which there are, and which of them answer."""

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

# Workers on the terminal and as JSON.

COLUMNS: Final = ("id", "host:pid", "queues", "run/proc", "claimed", "cpu", "memory", "beat", "up", "state")
PING_COLUMNS: Final = ("id", "host:pid", "latency", "answer")

_PLAIN = (
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
        format_age(worker.heartbeat_age),
        format_age(worker.last_heartbeat_at + worker.heartbeat_age - worker.started_at),
        worker.display_state,
    )


def warnings_of(workers: Sequence[WorkerRow]) -> Iterator[str]:
    """What is wrong with those that nobody has given up, each by its name."""
    for worker in filter(lambda each: not each.is_presumed_dead, workers):
        who = f"worker {short_form(worker.worker_id)} on {worker.hostname}"
        if worker.is_silent:
            yield f"{who}: silent since {worker.last_heartbeat_at:%H:%M:%S}Z, and may be dead"
            continue
        yield from (f"{who}: {warning}" for warning in worker.warnings)
        yield from (
            f"{who}: {operation} keeps failing, and is tried rarely" for operation in worker.disabled_operations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PingResult:
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


app = group("workers")

DEFAULT_TIMEOUT: Any = "2s"
"""As it would be typed, for defaults are parsed too and shown in the help."""

Threshold = Annotated[
    timedelta | None, duration_option("The silence after which a worker is stale; as the settings say.")
]


@app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    stale: Annotated[bool, typer.Option("--stale", help="Only those that have been silent for too long.")] = False,
    threshold: Threshold = None,
    full: Annotated[bool, typer.Option("--full", help="Whole ids, however wide that is.")] = False,
    json: JsonOption = False,
) -> None:
    """List the workers that have not stopped, the newest beat first."""
    workers = [each for each in asyncio.run(_workers(options, threshold)) if each.is_stale or not stale]
    if json:
        print_json({"workers": [document(each) for each in workers], "warnings": list(warnings_of(workers))})
        return
    if workers:
        print_table(COLUMNS, [cells(each, full=full) for each in workers], right=COLUMNS[3:9])
    else:
        options.print_message("no stale workers" if stale else "no workers")
    for warning in () if options.quiet else warnings_of(workers):
        print_warning(warning)


@app.command()
@with_global_options
def ping(
    options: GlobalOptions,
    *,
    worker: Annotated[str | None, id_option("Only this worker.")] = None,
    timeout: Annotated[timedelta, duration_option("How long to wait for answers.")] = DEFAULT_TIMEOUT,
    json: JsonOption = False,
) -> int:
    """Ask workers to answer. Exit 1 when one that should be alive does not."""
    asked = asyncio.run(_ping(options, worker, timeout))
    if json:
        print_json({"workers": [each.document() for each in asked]})
    elif asked:
        print_table(PING_COLUMNS, [each.cells() for each in asked], right=("latency",))
    else:
        options.print_message(f"no worker {short_form(worker)} is alive" if worker else "no live workers")
    is_missed = worker is not None and not asked
    return ExitCode.FAILED if is_missed or any(not each.has_answered for each in asked) else ExitCode.DONE


def _threshold(settings: AppConfig, given: timedelta | None) -> timedelta:
    return given or timedelta(milliseconds=settings.recovery.worker_stale_threshold_ms)


async def _workers(options: GlobalOptions, threshold: timedelta | None) -> Sequence[WorkerRow]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        return await ops.list_active_workers(_threshold(ops.settings, threshold))


async def _ping(options: GlobalOptions, named: str | None, within: timedelta) -> list[PingResult]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        worker = None if named is None else await resolve_worker_id(ops, named)
        known = await ops.list_active_workers(_threshold(ops.settings, None))
        alive = {
            each.worker_id: each for each in known if not each.is_presumed_dead and worker in {None, each.worker_id}
        }
        pongs = await ops.ping_workers(within=within, worker_id=worker, min_responses=len(alive) or None)
    answers = {UUID(pong.worker_id): pong for pong in pongs}
    return [PingResult(worker_id=each, row=alive.get(each), pong=answers.get(each)) for each in alive | answers]
