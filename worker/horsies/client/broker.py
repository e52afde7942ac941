"""The broker: this process's way to the database, opened when first used."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from horsies.client.delivery import KeyedSendLimiter
from horsies.client.notify import NotifyCoalescer
from horsies.client.waiter import ResultWaiters, is_run_terminal_or_paused, is_task_terminal
from horsies.codec.values import ValueCodec
from horsies.embedded import other_clusters
from horsies.model.settings import PostgresConfig, RecoveryConfig
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.recovery.hooks import HookCaller
from horsies.store.connection import STATEMENT_TIMEOUT_S, ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import ConnectionSpecs, Endpoint, resolve_database
from horsies.store.listen import TASK_DONE_CHANNEL, WORKFLOW_DONE_CHANNEL
from horsies.store.tasks import TaskResultRow, TaskStore
from horsies.store.workflows import RunResultRow, WorkflowReader
from horsies.sync import BRIDGE

# A database within reach of all event loops of a process.


class SharedEndpoint:
    """What sessions share: an embedded server is let go of when this is closed and the last of them has left."""

    def __init__(self, reached: Endpoint) -> None:
        self._reached = reached
        self.lease = reached.lease
        self._sharing = threading.Lock()
        self._sessions = 0
        self._is_closed = False

    @property
    def connection_specs(self) -> ConnectionSpecs:
        return self._reached.connection_specs

    @property
    def is_lost(self) -> bool:
        """Whether the server was let go of under the sessions, as at interpreter exit; reach it again."""
        return self.lease is not None and not self.lease.is_held

    def join(self) -> bool:
        """Count one session in; False when this was closed meanwhile."""
        with self._sharing:
            self._sessions += not self._is_closed
            return not self._is_closed

    def leave(self) -> bool:
        """Count one session out; True for the last of a closed one, which has to `release` it."""
        with self._sharing:
            self._sessions -= 1
            return self._is_closed and not self._sessions

    def close(self) -> bool:
        """Let nobody else in; True when nobody is left who would `release` it."""
        with self._sharing:
            self._is_closed = True
            return not self._sessions

    def release(self) -> None:
        """Let go of an embedded server; blocks while it stops, and again is harmless."""
        self._reached.release()


# What a child made by `fork` must not take over from its parent.


def call_after_fork(renew: Callable[[], None]) -> None:
    """Call the bound method `renew` in every forked child while its object lives, which this does not prolong."""
    method = weakref.WeakMethod(renew)

    def renew_what_lives() -> None:
        if (living := method()) is not None:
            living()

    os.register_at_fork(after_in_child=renew_what_lives)


# One resource for each event loop, closed when its loop shuts down.

R = TypeVar("R")

_PARENT_RESOURCES: list[object] = []
_NOBODY = (None, None)


class PerLoop(Generic[R]):
    """Connections belong to the loop that made them, and a program may run several, one after the other or in threads.

    A loop that ends properly, as `asyncio.run` does it, closes its asynchronous generators; ours closes the resource.
    What a loop leaves behind that was closed without this is abandoned when the next resource is kept. A forked child
    has no use for the parent's loops and begins with none.
    """

    def __init__(self, close: Callable[[R], Awaitable[None]], abandon: Callable[[R], None]) -> None:
        self._close = close
        self._abandon = abandon
        self._begin()
        call_after_fork(self._begin_in_child)

    @property
    def has_any(self) -> bool:
        """Whether any loop has one, running or not."""
        return bool(self._kept)

    def get(self) -> R | None:
        """The resource of the running loop; None where it has none."""
        loop, latest = asyncio.get_running_loop(), self.latest  # read once: another thread may have the next
        return latest[1] if loop is latest[0] else self._kept.get(loop)

    async def set(self, resource: R) -> None:
        """Keep this one for the running loop, which has none; no other task runs before `here` finds it."""
        self._abandon_those_of_closed_loops()
        loop = asyncio.get_running_loop()
        self._kept[loop] = resource
        self.latest = loop, resource
        self._guards[loop] = self._until_the_loop_ends()
        await anext(self._guards[loop])

    async def close(self) -> None:
        """Close the resource of the running loop; safe where there is none."""
        if guard := self._guards.get(asyncio.get_running_loop()):
            await guard.aclose()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            # Forgotten first: whoever asks while it closes gets another. Kept, it would keep its loop alive.
            loop = asyncio.get_running_loop()
            del self._guards[loop]
            if (resource := self._forgotten(loop)) is not None:
                await self._close(resource)

    def _abandon_those_of_closed_loops(self) -> None:
        # A resource keeps its loop alive, so the weak keys alone would let go of neither.
        for loop in [reference() for reference in self._kept.keyrefs()]:
            if loop is not None and loop.is_closed() and (resource := self._forgotten(loop)) is not None:
                self._guards.pop(loop, None)
                self._abandon(resource)

    def _forgotten(self, loop: asyncio.AbstractEventLoop) -> R | None:
        """What was kept for this loop, and is not from now on; None where another thread came first."""
        if loop is self.latest[0]:
            self.latest = _NOBODY
        return self._kept.pop(loop, None)

    def _begin_in_child(self) -> None:
        # Let go of here, they would be closed here: with a goodbye on sockets that the parent still uses.
        _PARENT_RESOURCES.append((self._kept, self._guards))
        self._begin()

    def _begin(self) -> None:
        self.latest: tuple[asyncio.AbstractEventLoop, R] | tuple[None, None] = _NOBODY
        """The loop that got one last, and what it got: most programs have one loop, which need not be looked up."""
        self._kept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, R] = weakref.WeakKeyDictionary()
        self._guards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            weakref.WeakKeyDictionary()
        )


# What recovery at a program's word goes by. Apart from it: every app has terms, and hardly a producer recovers.


def no_hooks() -> None:
    """Nobody is asked."""


class NoDefinitions:
    """The workflow definitions of a broker without an app: none."""

    def build(self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]) -> None:
        """Left to a worker that knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDependencies:
    """What a broker knows of its app: settings for where no worker lives, hooks to ask, workflows to build."""

    local: RecoveryConfig = field(default_factory=RecoveryConfig)
    hooks: Callable[[], HookCaller | None] = no_hooks
    definitions: WorkflowDefinitions = field(default_factory=NoDefinitions)


Role = Literal["producer", "worker", "scheduler"]

logger = logging.getLogger("horsies.broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSession:
    """What one event loop uses: its pool, the way past a pooler, and everyone who waits in it.

    Connections cannot change loops, so a program with several has a pool and, once it waits for results, a listener in
    each of them; blocking calls from all threads share those of the bridge.
    """

    endpoint: SharedEndpoint
    database: Database
    direct: ConnectionSpec
    tasks: TaskStore
    task_waiters: ResultWaiters[TaskResultRow]
    run_waiters: ResultWaiters[RunResultRow]
    notify_coalescer: NotifyCoalescer
    key_limiter: KeyedSendLimiter

    async def close(self) -> None:
        try:
            await self.task_waiters.close()
            await self.run_waiters.close()
            await self.notify_coalescer.close()
            await self.database.close()
        finally:
            if self.endpoint.leave():
                await asyncio.to_thread(self.endpoint.release)

    def abandon(self) -> None:
        """Let go of everything without the event loop, which is closed; what stays open goes with its memory."""
        with suppress(RuntimeError):  # the driver asks the loop to close its end
            self.database.terminate()
        if self.endpoint.leave():
            self.endpoint.release()


class PostgresBroker:
    """One a process. Making it opens nothing; a forked child opens connections of its own."""

    def __init__(self, settings: PostgresConfig, *, role: Role = "producer") -> None:
        self.settings = settings
        self.role: Role = role
        self.result_codec_for: Callable[[str], ValueCodec | None] = lambda _: None
        """How the ok value of a task is read, by the task's name; None where the task is not known here."""
        self.recovery_dependencies = RecoveryDependencies()
        self._sessions = PerLoop(BrokerSession.close, BrokerSession.abandon)
        self._reset()
        call_after_fork(self._reset)

    @property
    def key_wait_s(self) -> float:
        """How long a send waits for an idempotency key that another transaction holds: no longer than the server lets a
        statement wait."""
        return min(self.settings.pool_timeout, STATEMENT_TIMEOUT_S)

    def ready_session(self) -> BrokerSession | None:
        """The session of the running loop, where it is open and its database is known to be ready."""
        loop, session = self._sessions.latest
        if loop is not asyncio.get_running_loop():
            session = self._sessions.get()
        if session is None or session.endpoint is not self._prepared_endpoint:
            return None
        return None if session.endpoint.lease is not None and session.endpoint.is_lost else session

    async def session(self) -> BrokerSession:
        """The session of the running loop."""
        session = self._sessions.get()
        if session is None or session.endpoint.is_lost:
            session = await self._open()
        if session.endpoint is not self._prepared_endpoint:
            await self._prepare(session)
        return session

    async def get_stale_tasks(self, stale_threshold_minutes: float = 5) -> list[dict[str, Any]]:
        """RUNNING tasks without a sign of life for so long, the longest silent first."""
        from horsies.client import recovery

        silence = recovery.parse_threshold(stale_threshold_minutes, unit=timedelta(minutes=1))
        return await recovery.stale_tasks(self, silence)

    async def mark_stale_tasks_as_failed(self, stale_threshold_ms: float = 300_000) -> int:
        """Settle RUNNING tasks that were silent for so long, as their retry policies say; returns how many."""
        from horsies.client import recovery

        silence = recovery.parse_threshold(stale_threshold_ms, unit=timedelta(milliseconds=1))
        return await recovery.run_sweep_step(self, recovery.SweepStep.RUNNING, silence)

    async def requeue_stale_claimed(self, stale_threshold_ms: float = 120_000) -> int:
        """Put CLAIMED tasks back whose owner was silent for so long; returns how many."""
        from horsies.client import recovery

        silence = recovery.parse_threshold(stale_threshold_ms, unit=timedelta(milliseconds=1))
        return await recovery.run_sweep_step(self, recovery.SweepStep.CLAIMED, silence)

    async def recover_stuck_workflows(self) -> int:
        """Put right runs of workflows that nobody would advance any more; returns how many."""
        from horsies.client import recovery

        return await recovery.heal_workflows(self)

    async def get_expired_tasks(self) -> list[dict[str, Any]]:
        """Tasks that wait and are past their good_until, the longest expired first."""
        from horsies.client import recovery

        return await recovery.expired_tasks(self)

    async def expire_pending_tasks(self) -> int:
        """End those; returns how many."""
        from horsies.client import recovery

        return await recovery.run_sweep_step(self, recovery.SweepStep.PENDING)

    async def close(self) -> None:
        """Close what the running loop has open; safe twice.

        An embedded server is let go of with the last session, which may be another loop's.
        """
        await self._sessions.close()
        shared, self._endpoint = self._endpoint, None
        if shared is not None and shared.close():
            await asyncio.to_thread(shared.release)

    def close_blocking(self) -> None:
        """The same for callers without an event loop."""
        if self._endpoint is not None or self._sessions.has_any:
            BRIDGE.run(self.close())

    async def _open(self) -> BrokerSession:
        await self._sessions.close()  # of a server that is lost
        while (session := self._sessions.get()) is None:
            shared = self._endpoint
            if shared is None or shared.is_lost:
                shared = await asyncio.to_thread(self._reach)
            # Another task may have come first, or another loop may have closed what was reached.
            if self._sessions.get() is None and shared.join():
                await self._sessions.set(self._make_session(shared))
        return session

    def _reach(self) -> SharedEndpoint:
        with self._resolve_lock:
            shared = self._endpoint
            if shared is None or shared.is_lost:
                reached = resolve_database(self.settings)
                shared = self._endpoint = SharedEndpoint(reached)
                if reached.lease is not None:
                    _say_where(reached, is_named=self.settings.database_url.embedded_folder is not None)
            return shared

    async def _prepare(self, session: BrokerSession) -> None:
        # The embedded database is this user's own, so it is brought up to date; any other is left to its operators.
        if self.settings.database_url.is_embedded:
            from horsies.store.migrate import migrate

            await migrate(session.database)
        self._prepared_endpoint = session.endpoint

    def _make_session(self, shared: SharedEndpoint) -> BrokerSession:
        links = shared.connection_specs
        size = self._pool_size()
        link = replace(links.main, notifies_explicitly=not links.main.is_pooled)
        database = Database(link, size)
        tasks = TaskStore(database)
        return BrokerSession(
            endpoint=shared,
            database=database,
            direct=links.direct,
            tasks=tasks,
            task_waiters=ResultWaiters(
                links.direct, tasks.results, channel=TASK_DONE_CHANNEL, is_done=is_task_terminal
            ),
            run_waiters=ResultWaiters(
                links.direct,
                WorkflowReader(database).run_results,
                channel=WORKFLOW_DONE_CHANNEL,
                is_done=is_run_terminal_or_paused,
            ),
            notify_coalescer=NotifyCoalescer(tasks.notify_queues, notifies_explicitly=link.notifies_explicitly),
            key_limiter=KeyedSendLimiter(limit=max(1, size.max_size // 2), wait_s=self.key_wait_s),
        )

    def _pool_size(self) -> PoolSettings:
        settings = self.settings
        if "HORSIES_CHILD_PROCESS" in os.environ:
            smallest, largest = settings.worker_child_pool_min_size, settings.worker_child_pool_max_size
            setting = "broker.worker_child_pool_max_size"
        elif self.role == "worker":
            smallest, largest = 0, settings.worker_pool_size + settings.worker_max_overflow
            setting = "broker.worker_pool_size"
        else:
            smallest, largest = 0, settings.pool_size + settings.max_overflow
            setting = "broker.pool_size"
        return PoolSettings(
            min_size=smallest,
            max_size=largest,
            acquire_timeout_s=settings.pool_timeout,
            idle_s=settings.pool_recycle,
            check_idle=settings.pool_pre_ping,
            setting_name=setting,
        )

    def _reset(self) -> None:
        self._resolve_lock = threading.Lock()
        self._endpoint: SharedEndpoint | None = None
        self._prepared_endpoint: SharedEndpoint | None = None


def _say_where(reached: Endpoint, *, is_named: bool) -> None:
    """Log the folder, and any other where it was taken by default: whoever names one knows which they mean."""
    folder = reached.connection_specs.embedded_folder
    assert folder is not None  # noqa: S101  # a lease is of an embedded server
    logger.info("using the embedded PostgreSQL in %s", folder)
    for other in () if is_named else other_clusters(folder):
        logger.warning("another embedded cluster is at %s; set broker.database_url where both sides must meet", other)
