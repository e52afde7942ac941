"""`horsies demo`: the sample app at work, for people who want to see it move."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from horsies.errors import ExitCode, UsageError
from horsies_ops.cli.options import GlobalOptions, group, with_global_options
from horsies_ops.cli.output import print_facts, print_line
from horsies_ops.demo import DemoStatus, demo_setup, run_demo, run_demo_with_tui

app = group("demo")


@app.command()
@with_global_options
def demo(
    options: GlobalOptions,
    *,
    seconds: Annotated[float, typer.Option("--seconds", min=5, help="How long it lasts.")] = 60,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Children of the worker that survives.")] = 4,
    tui: Annotated[bool, typer.Option("--tui", help="Under the screens, until they are left.")] = False,
) -> int:
    """Show the sample app at work on a database of its own, and a killed worker whose tasks are recovered."""
    if tui and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("the screens need a terminal", hint="without --tui the demo prints a summary")
    options.print_message("starting a database and two workers …")
    with demo_setup() as made:
        settings = made.settings()
        if tui:
            return asyncio.run(run_demo_with_tui(made, settings, processes=processes))
        options.print_message(f"two workers on an embedded PostgreSQL in {made.folder}, for {seconds:g} s")
        last = asyncio.run(
            run_demo(
                made,
                settings,
                seconds=seconds,
                processes=processes,
                on_message=options.print_message,
                on_status=lambda seen: options.print_message(_line(seen)),
            )
        )
        _summarise(last)
    return ExitCode.DONE


def _line(seen: DemoStatus) -> str:
    counts = seen.overview.counts
    states = "  ".join(f"{status.lower()} {counts[status].number}" for status in counts if counts[status].number)
    return f"{seen.elapsed_s:4.0f} s  {states}  recovered {seen.recovered}"


def _summarise(seen: DemoStatus) -> None:
    overview = seen.overview
    print_line("")
    print_facts(
        {f"tasks {status}": str(count.number) for status, count in overview.counts.items()}
        | {f"workflows {status}": str(count.number) for status, count in overview.workflows.items()}
        | {f"workers {state}": str(number) for state, number in overview.workers.items()}
        | {"tasks recovered": str(seen.recovered)}
    )
