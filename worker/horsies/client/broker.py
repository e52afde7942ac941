"""The broker: opens database sessions on first use, one per event loop.

Several loops of a process share one resolved endpoint. A forked child shares nothing with its parent.
"""

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

from horsies.client.delivery import KeyedSendLimiter, NotifyCoalescer
from horsies.client.waiter import ResultWaiters
from horsies.codec.values import ValueCodec
from horsies.model.settings import PostgresConfig, RecoveryConfig
from horsies.model.task import TASK_TERMINAL_STATES
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowDefinitions, WorkflowStatus
from horsies.recovery.hooks import HookCaller
from horsies.store.connection import STATEMENT_TIMEOUT_S, ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import Endpoint, resolve_database
from horsies.store.listen import TASK_DONE_CHANNEL, WORKFLOW_DONE_CHANNEL
from horsies.store.tasks import TaskResultRow, TaskStore
from horsies.store.workflows import RunResultRow, WorkflowStore
from horsies.sync import BRIDGE

Role = Literal["producer", "worker", "scheduler"]

MAX_EXPECTED = 1000
"""Rows stored by this process that are remembered until their end is notified."""

logger = logging.getLogger("horsies.broker")


class PostgresBroker:
    """A process's access to the database. Creating one opens no connection; one per process is enough."""

    def __init__(
        self,
        settings: PostgresConfig,
        *,
        role: Role = "producer",
        result_codec_for: Callable[[str], ValueCodec | None] = lambda _: None,
        recovery_dependencies: RecoveryDependencies | None = None,
    ) -> None:
        self.settings = settings
        self.role: Role = role
        self.result_codec_for = result_codec_for
        """Returns the codec for the ok value of a task, by task name; None if this process does not know the task."""
        self.recovery_dependencies = recovery_dependencies or RecoveryDependencies()
        self._sessions = PerLoop(BrokerSession.close, BrokerSession.abandon)
        self._reset()
        call_after_fork(self._reset)

    @property
    def key_wait_s(self) -> float:
        """How long a send waits for an idempotency key held by another transaction, at most the statement timeout."""
        return min(self.settings.pool_timeout, STATEMENT_TIMEOUT_S)

    async def session(self) -> BrokerSession:
        """The session of the running loop, opened if necessary."""
        session = self._sessions.get()
        if session is None or session.endpoint.is_lost:
            session = await self._open()
        if session.endpoint is not self._prepared_endpoint:
            # An embedded database belongs to this user, so it is migrated here; operators migrate any other.
            if self.settings.database_url.is_embedded:
                from horsies.store.migrate import migrate

                await migrate(session.database)
            self._prepared_endpoint = session.endpoint
        return session

    # `client.recovery` is imported when used: it imports this module, and producers never need it.
    async def get_stale_tasks(self, stale_threshold_minutes: float = 5) -> list[dict[str, Any]]:
        """RUNNING tasks without a heartbeat for the threshold, longest silent first."""
        from horsies.client import recovery

        threshold = recovery.parse_threshold(stale_threshold_minutes, unit=timedelta(minutes=1))
        return await recovery.stale_tasks(self, threshold)

    async def mark_stale_tasks_as_failed(self, stale_threshold_ms: float = 300_000) -> int:
        """Retry or fail stale RUNNING tasks according to their retry policies; returns how many."""
        from horsies.client import recovery

        threshold = recovery.parse_threshold(stale_threshold_ms, unit=timedelta(milliseconds=1))
        return await recovery.run_sweep_step(self, recovery.SweepStep.RUNNING, threshold)

    async def requeue_stale_claimed(self, stale_threshold_ms: float = 120_000) -> int:
        """Requeue CLAIMED tasks of stale workers; returns how many."""
        from horsies.client import recovery

        threshold = recovery.parse_threshold(stale_threshold_ms, unit=timedelta(milliseconds=1))
        return await recovery.run_sweep_step(self, recovery.SweepStep.CLAIMED, threshold)

    async def recover_stuck_workflows(self) -> int:
        """Heal stuck workflow runs; returns how many were healed."""
        from horsies.client import recovery

        return await recovery.heal_workflows(self)

    async def get_expired_tasks(self) -> list[dict[str, Any]]:
        """PENDING tasks past their good_until, longest expired first."""
        from horsies.client import recovery

        return await recovery.expired_tasks(self)

    async def expire_pending_tasks(self) -> int:
        """Expire PENDING tasks past their good_until; returns how many."""
        from horsies.client import recovery

        return await recovery.run_sweep_step(self, recovery.SweepStep.PENDING)

    async def close(self) -> None:
        """Close the session of the running loop; safe to call twice.

        An embedded server is released with the last session, which may belong to another loop.
        """
        await self._sessions.close()
        shared, self._endpoint = self._endpoint, None
        if shared is not None and shared.close():
            await asyncio.to_thread(shared.release)

    def close_blocking(self) -> None:
        """Like `close`, for callers without an event loop."""
        if self._endpoint is not None or self._sessions.has_any:
            BRIDGE.run(self.close())

    async def _open(self) -> BrokerSession:
        await self._sessions.close()  # a session of a lost server, if any
        while (session := self._sessions.get()) is None:
            shared = self._endpoint
            if shared is None or shared.is_lost:
                shared = await asyncio.to_thread(self._resolve)
            # Meanwhile another task may have opened a session, or another loop may have closed the endpoint.
            if self._sessions.get() is None and shared.join():
                await self._sessions.set(self._make_session(shared))
        return session

    def _resolve(self) -> SharedEndpoint:
        """Resolve the database address once for all loops; starts an embedded server if necessary, so it may block."""
        with self._resolve_lock:
            shared = self._endpoint
            if shared is None or shared.is_lost:  # another thread may have resolved it while this one waited
                endpoint = resolve_database(self.settings)
                shared = self._endpoint = SharedEndpoint(endpoint)
                if endpoint.server_handle is not None:
                    logger.info("using embedded PostgreSQL  folder=%s", endpoint.server_handle.folder)
            return shared

    def _make_session(self, shared: SharedEndpoint) -> BrokerSession:
        pool_settings = self._pool_settings()
        spec = replace(shared.connection_spec, force_generic_plan=True)
        database, direct = Database(spec, pool_settings), spec.direct
        tasks, expected_ends = TaskStore(database), ExpectedEnds()
        return BrokerSession(
            endpoint=shared,
            database=database,
            tasks=tasks,
            expected_ends=expected_ends,
            task_waiters=ResultWaiters(
                direct,
                tasks.results,
                channel=TASK_DONE_CHANNEL,
                done_states=TASK_TERMINAL_STATES,
                expected_ends=expected_ends,
            ),
            run_waiters=ResultWaiters(
                direct,
                WorkflowStore(database).run_results,
                channel=WORKFLOW_DONE_CHANNEL,
                # A paused run ends the wait too: it does not continue by itself.
                done_states={*WORKFLOW_TERMINAL_STATES, WorkflowStatus.PAUSED},
                expected_ends=ExpectedEnds(),
            ),
            notify_coalescer=NotifyCoalescer(tasks),
            # Half of the pool may wait for idempotency keys; the other half stays free for all other sends.
            key_limiter=KeyedSendLimiter(limit=max(1, pool_settings.max_size // 2), wait_s=self.key_wait_s),
        )

    def _pool_settings(self) -> PoolSettings:
        settings = self.settings
        if "HORSIES_CHILD_PROCESS" in os.environ:
            min_size, max_size = settings.worker_child_pool_min_size, settings.worker_child_pool_max_size
            setting = "broker.worker_child_pool_max_size"
        elif self.role == "worker":
            min_size, max_size = 0, settings.worker_pool_size + settings.worker_max_overflow
            setting = "broker.worker_pool_size"
        else:
            min_size, max_size = 0, settings.pool_size + settings.max_overflow
            setting = "broker.pool_size"
        return PoolSettings(
            min_size=min_size,
            max_size=max_size,
            acquire_timeout_s=settings.pool_timeout,
            idle_s=settings.pool_recycle,
            check_idle=settings.pool_pre_ping,
            setting_name=setting,
        )

    def _reset(self) -> None:
        # A new lock: in a forked child, a thread that exists only in the parent may hold the old one.
        self._resolve_lock = threading.Lock()
        self._endpoint: SharedEndpoint | None = None
        self._prepared_endpoint: SharedEndpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSession:
    """Everything one event loop uses: its connection pool and its waiters.

    Connections cannot move between loops, so each loop has a pool and, once it waits for results, a listener. Blocking
    calls from all threads share the session of the bridge's loop.
    """

    endpoint: SharedEndpoint
    database: Database
    tasks: TaskStore
    expected_ends: ExpectedEnds
    task_waiters: ResultWaiters[TaskResultRow]
    run_waiters: ResultWaiters[RunResultRow]
    notify_coalescer: NotifyCoalescer
    key_limiter: KeyedSendLimiter

    async def close(self) -> None:
        try:
            await self.task_waiters.close()
            await self.run_waiters.close()
            await self.notify_coalescer.close()
            await self.database.close()  # last: the coalescer sends its notifications over the pool
        finally:
            if self.endpoint.leave():
                await asyncio.to_thread(self.endpoint.release)

    def abandon(self) -> None:
        """Drop the session after its loop was closed: nothing can be awaited, so sockets are closed at once."""
        with suppress(RuntimeError):  # the driver tries to use the closed loop
            self.database.terminate()
        if self.endpoint.leave():
            self.endpoint.release()


class ExpectedEnds:
    """Rows that this loop stored while it listened and whose end was not notified yet, oldest first.

    Reading such a row would find that it has not ended: a wait for it skips its first read.
    """

    def __init__(self) -> None:
        self.is_listening = False
        self._row_ids: dict[str, None] = {}

    def add(self, row_id: str) -> None:
        """Call before storing a new row; `discard` it if it was not stored, or not by this call."""
        if self.is_listening:
            if len(self._row_ids) >= MAX_EXPECTED:
                del self._row_ids[next(iter(self._row_ids))]
            self._row_ids[row_id] = None

    def discard(self, row_id: str) -> bool:
        """Forget the row; whether it was known."""
        is_known = row_id in self._row_ids
        self._row_ids.pop(row_id, None)
        return is_known

    def reset(self, *, is_listening: bool) -> None:
        """The listener connected or disconnected: notifications may have been lost."""
        self.is_listening = is_listening
        self._row_ids.clear()


class SharedEndpoint:
    """An endpoint used by the sessions of several loops; thread-safe.

    The last session to `leave` after `close` gets True and must `release` it; without sessions, `close` returns True.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.server_handle = endpoint.server_handle
        self._lock = threading.Lock()
        self._sessions = 0
        self._is_closed = False

    @property
    def connection_spec(self) -> ConnectionSpec:
        return self._endpoint.connection_spec

    @property
    def is_lost(self) -> bool:
        """Whether the embedded server was released while in use, for example at exit; it must be resolved again."""
        return self.server_handle is not None and not self.server_handle.is_held

    def join(self) -> bool:
        """Add a session; False if the endpoint is closed."""
        with self._lock:
            self._sessions += not self._is_closed
            return not self._is_closed

    def leave(self) -> bool:
        """Remove a session; True if the caller must `release` the endpoint."""
        with self._lock:
            self._sessions -= 1
            return self._is_closed and not self._sessions

    def close(self) -> bool:
        """Accept no more sessions; True if the caller must `release` the endpoint."""
        with self._lock:
            self._is_closed = True
            return not self._sessions

    def release(self) -> None:
        """Release an embedded server; blocks while it stops. Safe to call twice."""
        self._endpoint.release()


# Resources per event loop

R = TypeVar("R")

_PARENT_RESOURCES: list[object] = []


class PerLoop(Generic[R]):
    """Holds one resource per event loop and closes it when its loop shuts down.

    Python has no hook for the end of a loop, but `asyncio.run` closes the loop's asynchronous generators; so each
    resource has one that closes it. A loop closed without that leaves its resource behind: it is abandoned when the
    next resource is set. A forked child starts empty.
    """

    def __init__(self, close: Callable[[R], Awaitable[None]], abandon: Callable[[R], None]) -> None:
        self._close = close
        self._abandon = abandon
        self._reset()
        call_after_fork(self._reset_in_child)

    @property
    def has_any(self) -> bool:
        """Whether any loop has a resource, running or not."""
        return bool(self._resources)

    def get(self) -> R | None:
        """The resource of the running loop, or None."""
        return self._resources.get(asyncio.get_running_loop())

    async def set(self, resource: R) -> None:
        """Set the resource of the running loop, which must have none; does not yield to other tasks of the loop."""
        # Closed loops are found by a check: weak keys are not enough, because a resource holds a reference to its loop.
        for other in [reference() for reference in self._resources.keyrefs()]:
            if other is not None and other.is_closed() and (abandoned := self._remove(other)) is not None:
                self._closers.pop(other, None)
                self._abandon(abandoned)
        loop = asyncio.get_running_loop()
        self._resources[loop] = resource
        self._closers[loop] = self._close_at_loop_shutdown()
        await anext(self._closers[loop])  # a loop closes only generators that have started

    async def close(self) -> None:
        """Close the resource of the running loop, if any."""
        if closer := self._closers.get(asyncio.get_running_loop()):
            await closer.aclose()

    async def _close_at_loop_shutdown(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            # Removed before it is closed, so that `get` during the close does not return it.
            loop = asyncio.get_running_loop()
            self._closers.pop(loop, None)  # already gone in a forked child
            if (resource := self._remove(loop)) is not None:
                await self._close(resource)

    def _remove(self, loop: asyncio.AbstractEventLoop) -> R | None:
        """Remove and return the resource of a loop; None if another thread removed it first."""
        return self._resources.pop(loop, None)

    def _reset_in_child(self) -> None:
        # Kept referenced: garbage collection would close them and thereby end sessions that the parent still uses.
        _PARENT_RESOURCES.append((self._resources, self._closers))
        self._reset()

    def _reset(self) -> None:
        self._resources: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, R] = weakref.WeakKeyDictionary()
        self._closers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            weakref.WeakKeyDictionary()
        )


def call_after_fork(reset: Callable[[], None]) -> None:
    """Call the bound method `reset` in every forked child, without keeping its object alive."""
    method = weakref.WeakMethod(reset)

    def reset_if_alive() -> None:
        if (bound := method()) is not None:
            bound()

    os.register_at_fork(after_in_child=reset_if_alive)


# Dependencies of manual recovery. Here and not in `client.recovery`, which producers need not import.


class NoDefinitions:
    """The workflow definitions of a broker without an app: none."""

    def build(self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]) -> None:
        """Returns None: a worker that knows the definition builds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDependencies:
    """What manual recovery takes from the app: settings used if no worker is alive, hooks, workflow definitions."""

    local_config: RecoveryConfig = field(default_factory=RecoveryConfig)
    hooks: Callable[[], HookCaller | None] = lambda: None
    definitions: WorkflowDefinitions = field(default_factory=NoDefinitions)
