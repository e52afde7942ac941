"""`horsies workers`: which there are, and which of them answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.errors import ExitCode
from horsies.model.ids import short_form
from horsies_ops.cli.naming import worker_named
from horsies_ops.cli.option_types import id_or_short_form, time
from horsies_ops.cli.output import print_json, print_table, warn
from horsies_ops.cli.session import GlobalOptions, Json, group, with_global_options
from horsies_ops.cli.worker_views import ANSWERS, COLUMNS, Asked, cells, document, warnings_of
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.model.settings import AppConfig
    from horsies_ops.reads.workers import WorkerRow

app = group("workers")

DEFAULT_TIMEOUT: Any = "2s"
"""As it would be typed, for defaults are parsed too and shown in the help."""

Threshold = Annotated[timedelta | None, time("The silence after which a worker is stale; as the settings say.")]


@app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    stale: Annotated[bool, typer.Option("--stale", help="Only those that have been silent for too long.")] = False,
    threshold: Threshold = None,
    full: Annotated[bool, typer.Option("--full", help="Whole ids, however wide that is.")] = False,
    json: Json = False,
) -> None:
    """List the workers that have not stopped, the newest beat first."""
    workers = [each for each in asyncio.run(_workers(options, threshold)) if each.is_stale or not stale]
    if json:
        print_json({"workers": [document(each) for each in workers], "warnings": list(warnings_of(workers))})
        return
    if workers:
        print_table(COLUMNS, [cells(each, full=full) for each in workers], right=COLUMNS[3:9])
    else:
        options.talk("no stale workers" if stale else "no workers")
    for warning in () if options.quiet else warnings_of(workers):
        warn(warning)


@app.command()
@with_global_options
def ping(
    options: GlobalOptions,
    *,
    worker: Annotated[str | None, id_or_short_form("Only this worker.")] = None,
    timeout: Annotated[timedelta, time("How long to wait for answers.")] = DEFAULT_TIMEOUT,
    json: Json = False,
) -> int:
    """Ask workers to answer. Exit 1 when one that should be alive does not."""
    asked = asyncio.run(_ping(options, worker, timeout))
    if json:
        print_json({"workers": [each.document() for each in asked]})
    elif asked:
        print_table(ANSWERS, [each.cells() for each in asked], right=("latency",))
    else:
        options.talk(f"no worker {short_form(worker)} is alive" if worker else "no live workers")
    is_missed = worker is not None and not asked
    return ExitCode.FAILED if is_missed or any(not each.has_answered for each in asked) else ExitCode.DONE


def _threshold(settings: AppConfig, given: timedelta | None) -> timedelta:
    return given or timedelta(milliseconds=settings.recovery.worker_stale_threshold_ms)


async def _workers(options: GlobalOptions, threshold: timedelta | None) -> Sequence[WorkerRow]:
    async with open_ops(options.settings().app, read_only=True, via="cli") as ops:
        return await ops.list_active_workers(_threshold(ops.settings, threshold))


async def _ping(options: GlobalOptions, named: str | None, within: timedelta) -> list[Asked]:
    async with open_ops(options.settings().app, read_only=True, via="cli") as ops:
        worker = None if named is None else await worker_named(ops, named)
        known = await ops.list_active_workers(_threshold(ops.settings, None))
        alive = {each.worker_id: each for each in known if not each.is_given_up and worker in {None, each.worker_id}}
        pongs = await ops.ping_workers(within=within, worker_id=worker, enough=len(alive) or None)
    answers = {UUID(pong.worker_id): pong for pong in pongs}
    return [Asked(worker_id=each, row=alive.get(each), pong=answers.get(each)) for each in alive | answers]
