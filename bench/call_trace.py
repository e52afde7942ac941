"""Records which product files execute, and when, in a process and all of its threads."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PRODUCT = ("worker", "horsies_ops", "tui")


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """A function of a product file that was called, or a coroutine of it that was resumed."""

    at_ns: int
    """By the wall clock, which PostgreSQL uses too."""
    pid: int
    asyncio_task: int
    """Identifies the asyncio task within its process; 0 outside of one."""
    file: str


def trace_calls(folder: Path) -> None:
    """Append a line to `folder`/PID.calls for every call of product code, from now on until the process ends.

    Written without a buffer: processes that are killed keep their trace. Forked processes continue it in files of their
    own.
    """
    product_files: dict[str, str | None] = {}

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        name = frame.f_code.co_filename
        if name == "<string>":  # methods that dataclasses generate belong to the module of their class
            name = str(frame.f_globals.get("__file__"))
        if name not in product_files:
            product_files[name] = _product_file(name)
        if (file := product_files[name]) is not None:
            _append(folder, f"{time.time_ns()} {_current_task()} {file}\n")

    threading.setprofile(on_event)
    sys.setprofile(on_event)


def read_calls(folder: Path) -> list[Call]:
    """All calls of all traced processes, in order."""
    calls: list[Call] = []
    for trace in folder.glob("*.calls"):
        for line in trace.read_text().splitlines():
            at_ns, asyncio_task, file = line.split(maxsplit=2)
            calls.append(Call(int(at_ns), int(trace.stem), int(asyncio_task), file))
    return sorted(calls)


def environment_to_trace(folder: Path) -> dict[str, str]:
    """Variables with which every Python process, and every one that it starts, traces itself into `folder`."""
    # Python imports `sitecustomize` before anything else, so the product needs no code for this.
    (folder / "sitecustomize.py").write_text(
        f"from pathlib import Path\nfrom bench.call_trace import trace_calls\ntrace_calls(Path({str(folder)!r}))\n"
    )
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "worker", ROOT / "tui")))}


def _append(folder: Path, line: str) -> None:
    # Opened for every line: the fork server closes the descriptors it inherits, and their numbers may be in use again.
    output = os.open(f"{folder}/{os.getpid()}.calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(output, line.encode())
    finally:
        os.close(output)


def _product_file(name: str) -> str | None:
    path = Path(name)
    if not path.is_relative_to(ROOT) or path.stem == "__init__":
        return None
    path = path.relative_to(ROOT)
    return str(path) if path.parts[0] in PRODUCT else None


def _current_task() -> int:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return 0
    return 0 if task is None else id(task)
