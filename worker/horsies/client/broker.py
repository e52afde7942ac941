"""The broker: this process's way to the database, opened when first used."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from horsies.client.announcing import Announcements
from horsies.client.forks import in_each_child
from horsies.client.keys import KeyTurns
from horsies.client.loops import PerLoop
from horsies.client.reaching import SharedReach
from horsies.client.recovery_terms import RecoveryTerms
from horsies.client.waiting import Waiters, is_at_rest, is_settled
from horsies.embedded import other_clusters
from horsies.store.db import Database, PoolSize
from horsies.store.flow_reads import FlowReadStore
from horsies.store.link import STATEMENT_TIMEOUT_S
from horsies.store.notify import TASK_DONE, WORKFLOW_DONE
from horsies.store.open import Reached, reach
from horsies.store.tasks import TaskStore
from horsies.sync import BRIDGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.codec.value import Value
    from horsies.model.settings import PostgresConfig
    from horsies.store.flow_reads import RunOutcomeRow
    from horsies.store.link import Link
    from horsies.store.tasks import OutcomeRow

Role = Literal["producer", "worker", "scheduler"]

logger = logging.getLogger("horsies.broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What one event loop uses: its pool, the way past a pooler, and everyone who waits in it.

    Connections cannot change loops, so a program with several has a pool and, once it waits for results, a listener in
    each of them; blocking calls from all threads share those of the bridge.
    """

    reach: SharedReach
    database: Database
    direct: Link
    tasks: TaskStore
    waiters: Waiters[OutcomeRow]
    runs: Waiters[RunOutcomeRow]
    announcements: Announcements
    key_turns: KeyTurns

    async def close(self) -> None:
        try:
            await self.waiters.close()
            await self.runs.close()
            await self.announcements.close()
            await self.database.close()
        finally:
            if self.reach.leave():
                await asyncio.to_thread(self.reach.release)

    def abandon(self) -> None:
        """Let go of everything without the event loop, which is closed; what stays open goes with its memory."""
        with suppress(RuntimeError):  # the driver asks the loop to close its end
            self.database.terminate()
        if self.reach.leave():
            self.reach.release()


class PostgresBroker:
    """One a process. Making it opens nothing; a forked child opens connections of its own."""

    def __init__(self, settings: PostgresConfig, *, role: Role = "producer") -> None:
        self.settings = settings
        self.role: Role = role
        self.ok_of: Callable[[str], Value | None] = lambda _: None
        """How the ok value of a task is read, by the task's name; None where the task is not known here."""
        self.recovery_terms = RecoveryTerms()
        self._sessions = PerLoop(Session.close, Session.abandon)
        self._forget()
        in_each_child(self._forget)

    @property
    def key_wait_s(self) -> float:
        """How long a send waits for an idempotency key that another transaction holds: no longer than the server lets a
        statement wait."""
        return min(self.settings.pool_timeout, STATEMENT_TIMEOUT_S)

    def session_here(self) -> Session | None:
        """The session of the running loop, where it is open and its database is known to be ready."""
        loop, session = self._sessions.latest
        if loop is not asyncio.get_running_loop():
            session = self._sessions.here()
        if session is None or session.reach is not self._prepared:
            return None
        return None if session.reach.lease is not None and session.reach.is_lost else session

    async def session(self) -> Session:
        """The session of the running loop."""
        session = self._sessions.here()
        if session is None or session.reach.is_lost:
            session = await self._open()
        if session.reach is not self._prepared:
            await self._prepare(session)
        return session

    async def get_stale_tasks(self, stale_threshold_minutes: float = 5) -> list[dict[str, Any]]:
        """RUNNING tasks without a sign of life for so long, the longest silent first."""
        from horsies.client import recovering

        silence = recovering.silence_of(stale_threshold_minutes, unit=timedelta(minutes=1))
        return await recovering.stale_tasks(self, silence)

    async def mark_stale_tasks_as_failed(self, stale_threshold_ms: float = 300_000) -> int:
        """Settle RUNNING tasks that were silent for so long, as their retry policies say; returns how many."""
        from horsies.client import recovering

        silence = recovering.silence_of(stale_threshold_ms, unit=timedelta(milliseconds=1))
        return await recovering.settle(self, recovering.Step.RUNNING, silence)

    async def requeue_stale_claimed(self, stale_threshold_ms: float = 120_000) -> int:
        """Put CLAIMED tasks back whose owner was silent for so long; returns how many."""
        from horsies.client import recovering

        silence = recovering.silence_of(stale_threshold_ms, unit=timedelta(milliseconds=1))
        return await recovering.settle(self, recovering.Step.CLAIMED, silence)

    async def recover_stuck_workflows(self) -> int:
        """Put right runs of workflows that nobody would advance any more; returns how many."""
        from horsies.client import recovering

        return await recovering.heal_workflows(self)

    async def get_expired_tasks(self) -> list[dict[str, Any]]:
        """Tasks that wait and are past their good_until, the longest expired first."""
        from horsies.client import recovering

        return await recovering.expired_tasks(self)

    async def expire_pending_tasks(self) -> int:
        """End those; returns how many."""
        from horsies.client import recovering

        return await recovering.settle(self, recovering.Step.PENDING)

    async def close(self) -> None:
        """Close what the running loop has open; safe twice.

        An embedded server is let go of with the last session, which may be another loop's.
        """
        await self._sessions.close()
        shared, self._shared = self._shared, None
        if shared is not None and shared.close():
            await asyncio.to_thread(shared.release)

    def close_blocking(self) -> None:
        """The same for callers without an event loop."""
        if self._shared is not None or self._sessions.are_any:
            BRIDGE.run(self.close())

    async def _open(self) -> Session:
        await self._sessions.close()  # of a server that is lost
        while (session := self._sessions.here()) is None:
            shared = self._shared
            if shared is None or shared.is_lost:
                shared = await asyncio.to_thread(self._reach)
            # Another task may have come first, or another loop may have closed what was reached.
            if self._sessions.here() is None and shared.join():
                await self._sessions.keep(self._session_over(shared))
        return session

    def _reach(self) -> SharedReach:
        with self._reaching:
            shared = self._shared
            if shared is None or shared.is_lost:
                reached = reach(self.settings)
                shared = self._shared = SharedReach(reached)
                if reached.lease is not None:
                    _say_where(reached, is_named=self.settings.database_url.embedded_folder is not None)
            return shared

    async def _prepare(self, session: Session) -> None:
        # The embedded database is this user's own, so it is brought up to date; any other is left to its operators.
        if self.settings.database_url.is_embedded:
            from horsies.store.migrate import migrate

            await migrate(session.database)
        self._prepared = session.reach

    def _session_over(self, shared: SharedReach) -> Session:
        links = shared.links
        size = self._pool_size()
        link = replace(links.pooled, says_itself=not links.pooled.pooled)
        database = Database(link, size)
        tasks = TaskStore(database)
        return Session(
            reach=shared,
            database=database,
            direct=links.direct,
            tasks=tasks,
            waiters=Waiters(links.direct, tasks.outcomes, channel=TASK_DONE, is_settled=is_settled),
            runs=Waiters(links.direct, FlowReadStore(database).outcomes, channel=WORKFLOW_DONE, is_settled=is_at_rest),
            announcements=Announcements(tasks.announce, are_left_to_us=link.says_itself),
            key_turns=KeyTurns(most=max(1, size.largest // 2), wait_s=self.key_wait_s),
        )

    def _pool_size(self) -> PoolSize:
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
        return PoolSize(
            smallest=smallest,
            largest=largest,
            wait_s=settings.pool_timeout,
            idle_s=settings.pool_recycle,
            check_idle=settings.pool_pre_ping,
            setting=setting,
        )

    def _forget(self) -> None:
        self._reaching = threading.Lock()
        self._shared: SharedReach | None = None
        self._prepared: SharedReach | None = None


def _say_where(reached: Reached, *, is_named: bool) -> None:
    """Log the folder, and any other where it was taken by default: whoever names one knows which they mean."""
    folder = reached.links.embedded_folder
    assert folder is not None  # noqa: S101  # a lease is of an embedded server
    logger.info("using the embedded PostgreSQL in %s", folder)
    for other in () if is_named else other_clusters(folder):
        logger.warning("another embedded cluster is at %s; set broker.database_url where both sides must meet", other)
