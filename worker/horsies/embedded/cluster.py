"""One cluster and the server on it. Whoever starts or stops it holds the start lock."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.embedded.accounts import server_account
from horsies.embedded.binaries import VARIABLE, Binaries, find_binaries
from horsies.embedded.conf import settings_of, write_conf
from horsies.embedded.creation import create_data
from horsies.embedded.folders import make_private
from horsies.embedded.leftovers import forget_stranger, recorded_pid, server_processes
from horsies.embedded.probe import Answer, ask
from horsies.embedded.programs import Programs
from horsies.embedded.reachable import reachable
from horsies.embedded.unavailable import unavailable
from horsies.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies.embedded.layout import Layout

# Recovery takes as long as it takes; this only bounds the wait for a server that hangs.
_START_LIMIT_S = 3600
_STOP_LIMIT_S = 600
_ORPHANS_LIMIT_S = 10
_BETWEEN_LOOKS_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster of one layout, with the settings that its next start will use."""

    layout: Layout
    durable: bool
    settings: Mapping[str, str]

    @property
    def answer(self) -> Answer:
        return ask(self.layout.socket)

    @property
    def pid(self) -> int | None:
        return recorded_pid(self.layout.pid_file)

    def ensure_running(self, lock: int) -> bool:
        """Return when the server takes clients: False when it was up already, True when we started it."""
        if self._comes_up_by_itself():
            return False
        self._start(lock)
        return True

    def stop(self) -> None:
        """End all sessions and the server, and return when it is gone."""
        deadline = time.monotonic() + (_STOP_LIMIT_S if self._ask_to_stop() else _ORPHANS_LIMIT_S)
        while server_processes(self.layout.data) or self.answer is not Answer.NONE:
            if time.monotonic() > deadline:
                raise unavailable(f"the server in {self.layout.folder} (pid {self.pid}) does not stop")
            time.sleep(_BETWEEN_LOOKS_S)
        self._remove_short_socket_folder()

    @property
    def data_version(self) -> str | None:
        """The major version that made the data, as PostgreSQL wrote it down."""
        try:
            return (self.layout.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return None

    def binaries(self) -> Binaries:
        """The programs that fit the data; any when there is none yet."""
        if not self.layout.data.exists():
            return find_binaries()
        major = self.data_version
        if major is None or not major.isdigit():
            raise unavailable(
                f"{self.layout.data} is there but holds no PostgreSQL cluster, and is not overwritten",
                hint=f"move {self.layout.data} away, or set broker.database_url",
            )
        try:
            return find_binaries(int(major))
        except ConfigurationError as error:
            raise unavailable(
                f"the data in {self.layout.data} is of PostgreSQL {major}: {error.message}",
                hint=f"install PostgreSQL {major} ({VARIABLE} names its folder), to run it or to pg_upgrade the data; "
                f"or move {self.layout.folder} away and start empty; or set broker.database_url",
                notes=error.notes,
            ) from None

    def _comes_up_by_itself(self) -> bool:
        """Whether a server that is up, starting or recovering takes clients; False once nothing is left of it."""
        began = time.monotonic()
        while (answer := self.answer) is not Answer.READY:
            orphans = server_processes(self.layout.data) if answer is Answer.NONE else []
            if answer is Answer.NONE and not orphans:
                return False
            waited_s = time.monotonic() - began
            if orphans and waited_s > _ORPHANS_LIMIT_S:
                raise unavailable(f"processes {orphans} of a server that is gone still use {self.layout.data}")
            if waited_s > _START_LIMIT_S:
                raise unavailable(f"the server in {self.layout.folder} (pid {self.pid}) lets no client in")
            time.sleep(_BETWEEN_LOOKS_S)
        return True

    def _ask_to_stop(self) -> bool:
        """Whether there was a server to ask; one in another container is out of reach."""
        # Not by pg_ctl: it needs binaries that may be gone by now, trusts any pid, and waits for zombies.
        pid = self.pid
        if pid is None or pid not in server_processes(self.layout.data):
            return False
        os.kill(pid, signal.SIGINT)
        return True

    def _start(self, lock: int) -> None:
        programs = self._programs()
        layout = self.layout
        make_private(layout.log, programs.account)
        make_private(layout.socket_folder, programs.account)
        write_conf(layout.conf, settings_of(layout.socket_folder, durable=self.durable, extra=self.settings))
        if not layout.data.exists():
            create_data(programs, durable=self.durable, lock=lock)
        forget_stranger(layout.pid_file)
        forget_stranger(layout.socket_pid_file)
        # pg_ctl puts the server into a session of its own; it must not inherit the lock, which it would hold for life.
        try:
            programs.run("pg_ctl", "start", "-s", "-w", "-t", str(_START_LIMIT_S), data=layout.data)
        except (KeyboardInterrupt, SystemExit):
            self.stop()  # pg_ctl ended with the interruption, the server that it started did not
            raise

    def _remove_short_socket_folder(self) -> None:
        """Leave no folder outside our own that nobody could attribute; one that is not empty stays."""
        if self.layout.socket_folder.parent != self.layout.folder:
            with suppress(OSError):
                self.layout.socket_folder.rmdir()

    def _programs(self) -> Programs:
        account = server_account(self.layout.data)
        binaries = reachable(self.binaries(), account, self.layout.copied_binaries)
        return Programs(binaries=binaries, account=account, layout=self.layout)
