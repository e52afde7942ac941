"""The children of a worker: a fixed number of supervised processes, each replaced when it exits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from horsies.engine.pool.child import Child, PoolListener
from horsies.engine.pool.fork_server import ForkServer
from horsies.engine.pool.orphan_killer import OrphanKiller
from horsies.engine.pool.process import ChildStarter
from horsies.engine.pool.protocol import ChildSpec
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.model.settings.worker import usable_cpus

MAX_FAILED_STARTS: Final = 3
START_BACKOFF_S: Final = 1.0
MAX_START_BACKOFF_S: Final = 30.0
_CHECK_HINT: Final = "run `horsies check`, which imports the same modules; the log above has the output of each child"
_RESOURCES_HINT: Final = "allow more open files and processes (ulimit -n, ulimit -u), or set worker.processes lower"

logger = logging.getLogger("horsies.engine.pool")


class ChildPool:
    """Keeps `size` children running.

    A child that fails to start is tried again with increasing delays. After three failed starts in a row the pool stops
    replacing children and the future `broken` gets the error: if they failed by errors of their own, or if no other
    child is left. Otherwise the pool is degraded and keeps the other children.
    """

    def __init__(
        self, spec: ChildSpec, size: int, listener: PoolListener, *, fork_server: ForkServer | None = None
    ) -> None:
        self._spec = spec
        self._size = size
        self._listener = listener
        self.children: set[Child] = set()
        """All living children, including those that are starting or retiring."""
        self._failed_starts = 0
        """In a row, by any cause."""
        self._permanent_start_errors = 0
        """In a row, by an error in the child's own code, such as a failed import."""
        self._start_errors: dict[asyncio.Event, str] = {}
        """Last error of each child that is missing, by the event that marks its first start."""
        self._orphan_killer = OrphanKiller()
        self._starter = ChildStarter(listener, fork_server)
        self.fork_server_lost = self._starter.fork_server_lost
        """Set from the loss of the fork server until another one is ready: a child that exits is replaced only then."""
        self._starting: set[asyncio.Task[Child]] = set()
        # Starting more than one child per CPU would only delay all of them.
        self._start_semaphore = asyncio.Semaphore(usable_cpus())
        self._services: list[asyncio.Task[None]] = []
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def degraded_reason(self) -> str | None:
        """Why the pool is degraded: its fork server is lost or children cannot be started; None if neither."""
        reasons = (
            ["fork server lost, claims nothing until another one is ready"] if self.fork_server_lost.is_set() else []
        )
        if errors := list(self._start_errors.values()):
            reasons.append(f"{len(errors)} of {self._size} children cannot be started: {errors[-1]}")
        return "; ".join(reasons) or None

    async def start(self) -> None:
        """Start all children; on failure kill them and raise the error."""
        ready_events = [asyncio.Event() for _ in range(self._size)]
        self._services = [asyncio.create_task(self._keep_child_running(is_ready)) for is_ready in ready_events]
        self._services.append(asyncio.create_task(self._check_children()))
        self._services.append(asyncio.create_task(self._starter.replace_lost_fork_servers()))
        for service in self._services:
            service.add_done_callback(self._on_service_ended)
        all_ready = asyncio.create_task(_wait_for_all(ready_events))
        try:
            await asyncio.wait([all_ready, self.broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            all_ready.cancel()
        if self.broken.done():
            await self.kill_all("the pool failed to start")
            self.broken.result()

    async def kill_all(self, why: str) -> None:
        """Stop replacing children, kill them with their process groups and wait until all have exited."""
        for service in self._services:
            service.cancel()
        self._starter.close()  # so that the starts that are under way end
        await asyncio.gather(*self._services, *self._starting, return_exceptions=True)
        self._services.clear()
        for child in tuple(self.children):
            child.kill(why)
        if self.children:
            await asyncio.wait([asyncio.create_task(child.exited.wait()) for child in self.children])
        self._orphan_killer.close()

    def on_recycle_due(self, child: Child) -> None:
        self._recycle_if_due(child)

    def on_child_exit(self, child: Child) -> None:
        self.children.discard(child)
        with suppress(OSError):  # no process can be started; the next change tries again, with all remaining groups
            self._orphan_killer.remove_group(child.pid)

    def _recycle_if_due(self, child: Child) -> None:
        """Retire a child that reached its limits if it can be replaced, one at a time: all others must accept work."""
        if not child.should_recycle or self.fork_server_lost.is_set():
            return
        if sum(other.accepts_work for other in self.children) == self._size:
            child.retire()

    async def _keep_child_running(self, is_ready: asyncio.Event) -> None:
        """Start a child and replace it whenever it exits; sets `is_ready` after the first start."""
        while True:
            child = await self._start_child(is_ready)
            is_ready.set()
            await child.exited.wait()

    async def _start_child(self, slot: asyncio.Event) -> Child:
        delay_s = START_BACKOFF_S
        while True:
            try:
                async with self._start_semaphore:
                    child = await self._spawn()
            except OSError as error:
                self._start_errors[slot] = f"cannot start a process: {error.strerror or error}"
                self._on_start_failed(self._start_errors[slot], hint=_RESOURCES_HINT)
            else:
                if child.start_error is None:
                    self._failed_starts = self._permanent_start_errors = 0
                    if self._start_errors.pop(slot, None) is not None:
                        self._listener.on_degraded_changed()
                    return child
                self._start_errors[slot] = child.start_error
                self._permanent_start_errors += child.is_start_error_permanent
                self._on_start_failed(child.start_error, is_over_memory=child.is_over_memory)
            self._listener.on_degraded_changed()
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_START_BACKOFF_S)

    async def _spawn(self) -> Child:
        """Start a child and wait until it is ready or has exited."""
        starting = asyncio.create_task(self._add_child())
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        child = await asyncio.shield(starting)  # once it is cancelled, `kill_all` waits for it
        await child.start_finished.wait()
        return child

    async def _add_child(self) -> Child:
        child = Child(await self._starter.start(), self._spec, self._listener, self)
        self.children.add(child)
        try:
            self._orphan_killer.add_group(child.pid)
        except OSError:
            child.kill("the orphan killer could not be started")
            raise
        return child

    def _on_start_failed(self, error: str, *, is_over_memory: bool = False, hint: str = _CHECK_HINT) -> None:
        """Count a failed start; raise if another try would fail too."""
        self._failed_starts += 1
        logger.warning("child failed to start: %s", error)
        if is_over_memory:
            raise ConfigurationError(
                f"a new child {error}, more than worker.max_memory_per_child_mb",
                code=ErrorCode.CONFIG_INVALID_WORKER,
                hint="raise worker.max_memory_per_child_mb, or import less",
            )
        is_child_left = any(child.has_started for child in self.children)
        if max(self._permanent_start_errors, 0 if is_child_left else self._failed_starts) >= MAX_FAILED_STARTS:
            raise HorsiesError(f"{MAX_FAILED_STARTS} children in a row failed to start: {error}", hint=hint)

    def _on_service_ended(self, service: asyncio.Task[None]) -> None:
        if service.cancelled() or self.broken.done():
            return
        error = service.exception()
        assert error is not None  # noqa: S101  # services run until they are cancelled
        self.broken.set_exception(error)
        self.broken.exception()  # mark as retrieved: not every owner awaits the future

    async def _check_children(self) -> None:
        clock = asyncio.get_running_loop().time
        checked_at = clock()
        while True:
            await asyncio.sleep(self._spec.heartbeat_interval_s)
            now = clock()
            for child in tuple(self.children):
                child.check_health(elapsed_s=now - checked_at)
                self._recycle_if_due(child)
            checked_at = now


async def _wait_for_all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()
