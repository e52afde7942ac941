"""Describes the machine and its load, which are printed with every result."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from bench.server import connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`load_*` is the system's load average over one minute, including the benchmark."""

    date: str
    processors: int
    system: str
    python: str
    postgresql: str
    asyncpg: str
    load_before: float
    load_after: float


async def describe_machine(url: str, *, load_before: float) -> Machine:
    async with connect(url) as connection:
        server = await connection.fetchval("SELECT current_setting('server_version')")
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        processors=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        python=platform.python_version(),
        postgresql=server,
        asyncpg=version("asyncpg"),
        load_before=load_before,
        load_after=load(),
    )


def load() -> float:
    return round(os.getloadavg()[0], 2)
