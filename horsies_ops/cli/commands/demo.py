"""`horsies demo`: run the sample app and show a recovery."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from horsies.errors import ExitCode, UsageError
from horsies.model.settings import TuiConfig
from horsies_ops.cli.options import GlobalOptions, group, with_global_options
from horsies_ops.cli.output import print_facts, print_line, program_name
from horsies_ops.demo import DemoStatus, demo_setup, run_demo, run_demo_with_tui

STARTING: Final = "starting a database and two workers …"

demo_app = group("demo")


@demo_app.command()
@with_global_options
def demo(
    options: GlobalOptions,
    *,
    seconds: Annotated[float, typer.Option("--seconds", min=5, metavar="N", help="Seconds to run.")] = 60,
    processes: Annotated[int, typer.Option("--processes", min=1, metavar="N", help="Worker processes.")] = 4,
    tui: Annotated[bool, typer.Option("--tui", help="Run inside the TUI until you quit.")] = False,
) -> int:
    """Run a sample app with a worker that is killed and recovered.

    Example: horsies demo --seconds 30
    """
    if tui and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("--tui needs a terminal", hint="without --tui the demo prints a summary")
    if tui:
        return run_in_tui(options, processes=processes)
    options.print_message(STARTING)
    with demo_setup(TuiConfig()) as setup:
        settings = setup.settings()
        options.print_message(f"two workers on an embedded PostgreSQL in {setup.folder}, for {seconds:g} s")
        final_status = asyncio.run(
            run_demo(
                setup,
                settings,
                seconds=seconds,
                processes=processes,
                on_message=options.print_message,
                on_status=lambda status: options.print_message(_progress_text(status)),
            )
        )
        _print_counts(final_status)
        _print_closing_summary(options, final_status)
    return ExitCode.DONE


def run_in_tui(
    options: GlobalOptions, *, processes: int = 4, tui: TuiConfig | None = None, arguments: Sequence[str] = ()
) -> int:
    """Run `horsies tui` with these settings and arguments over the demo until the user quits; returns its exit code."""
    options.print_message(STARTING)
    with demo_setup(tui or TuiConfig()) as setup:
        work = run_demo_with_tui(
            setup, setup.settings(), processes=processes, arguments=arguments, on_message=options.print_message
        )
        code, final_status = asyncio.run(work)
        _print_closing_summary(options, final_status)
    return code


def _progress_text(demo_status: DemoStatus) -> str:
    counts = demo_status.overview.counts
    states = "  ".join(f"{status.lower()} {counts[status].number}" for status in counts if counts[status].number)
    return f"{demo_status.elapsed_s:4.0f} s  {states}  recovered {demo_status.recovered}"


def _print_closing_summary(options: GlobalOptions, demo_status: DemoStatus) -> None:
    """Print what happened and the next steps, in five lines."""
    counts = demo_status.overview.counts
    done, failed = counts["COMPLETED"].number, counts["FAILED"].number
    # At most 80 columns, also if the program is `.venv/bin/horsies`: a terminal breaks longer lines within words.
    for line in (
        f"in {demo_status.elapsed_s:.0f} s two workers completed {done:,} tasks; {failed:,} failed on purpose",
        f"worker 2 was killed (kill -9); recovered by worker 1: {demo_status.recovered} (docs/recovery.md)",
        f"next: {program_name()} init               writes horsies.toml",
        f"      {program_name()} worker MODULE:app  runs your tasks (docs/tasks.md)",
        f"      {program_name()} tui                shows them",
    ):
        options.print_message(line)


def _print_counts(demo_status: DemoStatus) -> None:
    overview = demo_status.overview
    print_line("")
    print_facts(
        {f"tasks {status}": str(count.number) for status, count in overview.counts.items()}
        | {f"workflows {status}": str(count.number) for status, count in overview.workflows.items()}
        | {f"workers {state}": str(number) for state, number in overview.workers.items()}
        | {"tasks recovered": str(demo_status.recovered)}
    )
