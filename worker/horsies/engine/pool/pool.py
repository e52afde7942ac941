"""The processes of a worker: one supervised child a slot, each slot filled again when its child is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from horsies.engine.pool.child import Child, PoolListener
from horsies.engine.pool.orphan_killer import OrphanKiller
from horsies.engine.pool.process import ChildSpec
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.model.settings.worker import usable_cpus

MAX_FAILED_STARTS: Final = 3
START_BACKOFF_S: Final = 0.5
_CHECK_HINT: Final = "`horsies check` imports the same modules; the log above has what each child said"
_RESOURCES_HINT: Final = "allow more open files and processes (ulimit -n, ulimit -u), or set worker.processes lower"

logger = logging.getLogger("horsies.engine.pool")


class ChildPool:
    """Keeps `size` children up. `broken` fails when three in a row could not be started; nothing is refilled then."""

    def __init__(self, spec: ChildSpec, size: int, listener: PoolListener) -> None:
        self._spec = spec
        self._size = size
        self._listener = listener
        self._children: set[Child] = set()
        self._failed_starts = 0
        self._orphan_killer = OrphanKiller()
        # More at once would only make each of them late.
        self._start_semaphore = asyncio.Semaphore(usable_cpus())
        self._services: list[asyncio.Task[None]] = []
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def children(self) -> tuple[Child, ...]:
        """Every child that is alive, also those that are coming up or leaving."""
        return tuple(self._children)

    async def start(self) -> None:
        """Bring up every child, or raise why they cannot be; then none is left."""
        slots = [asyncio.Event() for _ in range(self._size)]
        self._services = [asyncio.create_task(self._keep_filled(slot)) for slot in slots]
        self._services.append(asyncio.create_task(self._check_children()))
        for service in self._services:
            service.add_done_callback(self._service_ended)
        all_filled = asyncio.create_task(_all_set(slots))
        try:
            await asyncio.wait([all_filled, self.broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            all_filled.cancel()
        if self.broken.done():
            await self.kill_all("the pool could not be started")
            self.broken.result()

    async def stop(self) -> None:
        """Have every child leave, kill those that do not in time or still work, and wait until all are gone."""
        await self._stop_services()
        for child in self.children:
            child.retire()
        await self._wait_until_gone(within_s=self._spec.quit_limit_s)
        await self.kill_all("the pool was stopped")

    async def kill_all(self, why: str) -> None:
        """Kill every child with its group and wait until all are gone; none comes after them."""
        await self._stop_services()
        for child in self.children:
            child.kill(why)
        await self._wait_until_gone()
        self._orphan_killer.close()

    def on_task_ended(self, child: Child) -> None:
        """Replace a child that has served its time, if every other one is at work."""
        if child.should_recycle and sum(each.accepts_work for each in self._children) == self._size:
            child.retire()

    def on_child_exit(self, child: Child) -> None:
        self._children.discard(child)
        with suppress(OSError):  # a new warden, if there can be one, is told of the others
            self._orphan_killer.remove_group(child.pid)

    async def _keep_filled(self, filled: asyncio.Event) -> None:
        """One slot."""
        while True:
            child = await self._start_child()
            filled.set()
            await child.exited.wait()

    def _service_ended(self, service: asyncio.Task[None]) -> None:
        if service.cancelled() or self.broken.done():
            return
        error = service.exception()
        assert error is not None  # noqa: S101  # they work until they are cancelled
        self.broken.set_exception(error)
        # Whoever wants to know asks; nobody has to.
        self.broken.exception()

    async def _start_child(self) -> Child:
        while True:
            try:
                async with self._start_semaphore:
                    child = await self._spawn()
            except OSError as error:
                self._on_start_failed(f"no process could be made: {error.strerror or error}", hint=_RESOURCES_HINT)
            else:
                if child.start_error is None:
                    self._failed_starts = 0
                    return child
                self._on_start_failed(child.start_error, is_overgrown=child.is_over_memory)
            await asyncio.sleep(START_BACKOFF_S * 2 ** (self._failed_starts - 1))

    async def _spawn(self) -> Child:
        """A child that has come up, or has died on the way."""
        child = Child(self._spec, self._listener, self)
        self._children.add(child)
        try:
            self._orphan_killer.add_group(child.pid)
        except OSError:
            child.kill("it has no warden")
            raise
        await child.start_finished.wait()
        return child

    def _on_start_failed(self, fault: str, *, is_overgrown: bool = False, hint: str = _CHECK_HINT) -> None:
        """Count a failed start; raise where another would fail as well."""
        self._failed_starts += 1
        logger.warning("a child did not come up: %s", fault)
        if is_overgrown:
            raise ConfigurationError(
                f"a fresh child {fault}, which is above worker.max_memory_per_child_mb",
                code=ErrorCode.CONFIG_INVALID_WORKER,
                hint="raise worker.max_memory_per_child_mb, or import less",
            )
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise HorsiesError(f"{MAX_FAILED_STARTS} children in a row did not come up: {fault}", hint=hint)

    async def _check_children(self) -> None:
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        while True:
            await asyncio.sleep(self._spec.heartbeat_interval_s)
            now = clock()
            for child in self.children:
                child.check_health(elapsed_s=now - looked_at)
                self.on_task_ended(child)
            looked_at = now

    async def _stop_services(self) -> None:
        for service in self._services:
            service.cancel()
        await asyncio.gather(*self._services, return_exceptions=True)
        self._services.clear()

    async def _wait_until_gone(self, *, within_s: float | None = None) -> None:
        waiting = [asyncio.create_task(child.exited.wait()) for child in self._children]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=within_s)
            for each in late:
                each.cancel()


async def _all_set(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()
