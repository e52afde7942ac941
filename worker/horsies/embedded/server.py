"""The embedded server as its users see it: use it, keep it, stop it, look at it."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from horsies.embedded.accounts import server_account
from horsies.embedded.binaries import find_binaries
from horsies.embedded.cluster import Cluster
from horsies.embedded.folders import make_folder, working_in
from horsies.embedded.layout import Layout
from horsies.embedded.lease import Lease
from horsies.embedded.locks import Share, exclusive, is_held, is_held_while
from horsies.embedded.places import located
from horsies.embedded.probe import Answer
from horsies.embedded.reports import EmbeddedStatus, StopReport
from horsies.errors import Busy, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from horsies.embedded.binaries import Binaries

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class EmbeddedServer:
    """One cluster in one folder; making this object touches nothing.

    Two locks order everything. `start.lock` is held by whoever starts, stops, joins or leaves; `users.lock` is shared
    by all who use the server, so whoever finds it free on leaving was the last.
    """

    def __init__(
        self, folder: Path | None = None, *, durable: bool = True, settings: Mapping[str, str] = _NO_SETTINGS
    ) -> None:
        self.folder = located(folder)
        self._layout = Layout(self.folder)
        self._cluster = Cluster(layout=self._layout, durable=durable, settings=settings)

    @property
    def url(self) -> str:
        """Where clients connect; valid while someone uses or keeps the server."""
        return self._layout.url

    def use(self) -> Lease:
        """Start the server or join it; it stays up at least until the lease is released."""
        self._make_folder()
        with self._alone() as lock:
            share = Share(self._layout.users_lock)
            try:
                started = self._cluster.ensure_running(lock)
            except BaseException:
                share.close()
                raise
            return Lease(url=self.url, folder=self.folder, started=started, leave=lambda: self._leave(share))

    def keep(self) -> bool:
        """Start the server or join it, and let it run until `stop`; True when it was started now."""
        self._make_folder()
        with self._alone() as lock:
            started = self._cluster.ensure_running(lock)
            self._layout.kept.touch(mode=0o600)
        return started

    def stop(self, *, force: bool = False) -> StopReport:
        """Stop the server and no longer keep it; refused while it is in use, unless `force`."""
        if not self._exists():
            return StopReport(folder=self.folder, was_running=False, was_kept=False, had_users=False)
        with self._alone():
            report = StopReport(
                folder=self.folder,
                was_running=self._cluster.answer is not Answer.NONE,
                was_kept=self._layout.kept.exists(),
                had_users=is_held(self._layout.users_lock),
            )
            if report.was_running and report.had_users and not force:
                raise Busy(f"the embedded server in {self.folder} is in use by others", hint="--force stops it anyway")
            self._layout.kept.unlink(missing_ok=True)
            if report.was_running:
                self._cluster.stop()
        return report

    def status(self) -> EmbeddedStatus:
        """Look at the cluster; starts, creates and changes nothing."""
        with working_in(self.folder):
            running = self._cluster.answer is not Answer.NONE
            binaries = self._fitting_binaries()
            return EmbeddedStatus(
                folder=self.folder,
                data_exists=self._layout.data.exists(),
                running=running,
                kept=self._layout.kept.exists(),
                users_present=is_held_while(self._layout.start_lock, self._layout.users_lock),
                pid=self._cluster.pid if running else None,
                server_version=binaries.version if binaries else self._cluster.data_version,
                binaries=binaries.bindir if binaries else None,
            )

    @contextmanager
    def _alone(self) -> Generator[int]:
        """Hold the start lock; what the system refuses meanwhile is told as a fault of the folder."""
        with working_in(self.folder), exclusive(self._layout.start_lock) as lock:
            yield lock

    def _exists(self) -> bool:
        with working_in(self.folder):
            return self.folder.is_dir()

    def _make_folder(self) -> None:
        with working_in(self.folder):
            if not self._layout.data.exists():
                find_binaries()  # where there are none, nothing is left behind
            make_folder(self.folder, server_account(self._layout.data))

    def _leave(self, share: Share) -> None:
        try:
            if self._exists():
                self._leave_in_turn(share)
        finally:
            share.close()

    def _leave_in_turn(self, share: Share) -> None:
        with self._alone():
            share.close()
            is_wanted = self._layout.kept.exists() or is_held(self._layout.users_lock)
            if not is_wanted and self._cluster.answer is not Answer.NONE:
                self._cluster.stop()

    def _fitting_binaries(self) -> Binaries | None:
        try:
            return self._cluster.binaries()
        except ConfigurationError:
            return None
