"""`horsies worker`: its options. `horsies_ops.cli.worker_run` runs it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from horsies.engine.pool.fork_server import ForkServer
from horsies.errors import ErrorCode, UsageError
from horsies_ops.cli.options import RELOADER_VARIABLE, AppArgument, GlobalOptions, group, with_global_options

worker_app = group("worker")


def _number(help_text: str) -> Any:
    return typer.Option(metavar="N", help=help_text)


_CLAIM_BATCH = "Most tasks claimed per queue in one pass; 0 = fill the free capacity [default: 0]"
_CLAIMS = "Most claimed tasks a worker may hold; 0 = its slots plus the prefetch buffer [default: 0]"
_TASKS_PER_CHILD = "Replace a child after this many tasks; 0 = never [default: 0]"
_MEMORY_PER_CHILD = "Replace a child that uses more memory than this [default: no limit]"
_SCHEDULER = "Run the scheduler in this worker"
_GRACE = "Seconds for running tasks to finish on shutdown; none = no limit; a second signal stops immediately"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options that set the settings of the same name in `[worker]`, and the log format."""

    processes: Annotated[int | None, _number("Worker processes [default: number of CPUs]")] = None
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Queues to serve, comma-separated [default: all]")
    ] = None
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Log format, text or json [default: text]")
    ] = None
    max_claim_batch: Annotated[int | None, _number(_CLAIM_BATCH)] = None
    max_claim_per_worker: Annotated[int | None, _number(_CLAIMS)] = None
    with_scheduler: Annotated[
        bool | None, typer.Option("--with-scheduler", help=f"{_SCHEDULER} [default: on if the app has schedules]")
    ] = None
    max_tasks_per_child: Annotated[int | None, _number(_TASKS_PER_CHILD)] = None
    max_memory_per_child_mb: Annotated[int | None, _number(_MEMORY_PER_CHILD)] = None
    grace_s: Annotated[str | None, typer.Option(metavar="SECONDS", help=f"{_GRACE} [default: 300]")] = None

    @property
    def settings(self) -> dict[str, object]:
        """The settings by dotted key; None means not given."""
        from horsies_ops.cli.option_types import split_values

        given: dict[str, object] = {f"worker.{name}": value for name, value in asdict(self).items()}
        given["worker.queues"] = None if self.queues is None else split_values(self.queues)
        given["log.format"] = given.pop("worker.log_format")
        return given


@worker_app.command()
@with_global_options
def worker(
    options: GlobalOptions,
    locator: AppArgument = None,
    *,
    worker_options: WorkerOptions,
    burst: Annotated[
        bool, typer.Option("--burst", help="Exit once its queues have no work left; delayed tasks are not waited for.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart the worker when its code changes, for development.")
    ] = False,
) -> int:
    """Run a worker: claim tasks, run them and store their results.

    Runs until SIGTERM, SIGINT or SIGHUP; a second SIGTERM or SIGINT stops immediately.

    Example: horsies worker shop.tasks:app --processes 4 --queues mail,default
    """
    if reload and burst:
        raise UsageError("--reload and --burst exclude each other", code=ErrorCode.CLI_INVALID_ARGS)
    has_children = not reload or RELOADER_VARIABLE in os.environ
    # Before anything else is imported: what only this process needs would take memory in the fork server as well.
    fork_server = ForkServer.fork() if has_children and ForkServer.can_fork_this_process() else None
    from horsies_ops.cli.worker_run import run_worker

    settings = worker_options.settings
    return run_worker(options, locator, settings, burst=burst, reload=reload, fork_server=fork_server)
