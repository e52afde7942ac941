"""How far a long command has come, for people who watch it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from horsies_ops.actions.report import Progress


@contextmanager
def progress_bar(doing: str, *, wanted: bool) -> Generator[Callable[[Progress], None] | None]:
    """Something to call as it goes on; None where nobody would see it."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(doing, total=None)
        yield lambda progress: bar.update(line, completed=progress.done, total=progress.total)


@contextmanager
def progress_line(*, wanted: bool) -> Generator[Callable[[str], None]]:
    """Something to say on one line as it goes on, which is gone in the end; nothing where nobody would see it."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as line:
        yield line.update
