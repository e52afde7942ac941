"""Running PostgreSQL's programs as the server's account."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.embedded.unavailable import unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from horsies.embedded.accounts import Account
    from horsies.embedded.binaries import Binaries
    from horsies.embedded.layout import Layout

_LINES_SHOWN = 12
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """PostgreSQL's programs, with what the last one said kept in the cluster's command.log."""

    binaries: Binaries
    account: Account
    layout: Layout

    def run(self, program: str, *arguments: str, data: Path, stdin: str = "", holding: int | None = None) -> None:
        """Run on the cluster in `data` to the end, or raise with the last lines of what was said.

        `holding` is a lock's descriptor that stays held while the program runs, even if we are killed meanwhile.
        """
        command = [str(self.binaries.bindir / program), *arguments]
        status = self._run(command, data=data, stdin=stdin, kept_open=() if holding is None else (holding,))
        if status != 0:
            raise unavailable(
                f"the embedded server in {self.layout.folder} does not run: {program} ended with status {status}",
                notes=[*self._last_words(), f"logs: {self.layout.command_log} and {self.layout.log}"],
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
                user=None if self.account.is_ours else self.account.uid,
                group=None if self.account.is_ours else self.account.gid,
                extra_groups=None if self.account.is_ours else [],
            ).returncode

    def _last_words(self) -> list[str]:
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
