"""A worker: its parts put together, its start, its signals and its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from horsies.engine.completer import Outcomes, Reports, Requeues, Settling
from horsies.engine.dispatcher import Dispatcher, Returns, Room, Wakeup
from horsies.engine.heartbeat import Gate, Health, Heartbeat, Identity
from horsies.engine.hooks import Interruptions
from horsies.engine.in_flight import Desk, Hands, Phase
from horsies.engine.notifications import PROBE_AFTER_S, Notices
from horsies.engine.pool.pool import Pool
from horsies.engine.pool.process import ChildSpec
from horsies.engine.reaper import reaper_of
from horsies.engine.reporter import Minutes, Reporter, Snapshots, Telling
from horsies.engine.service import NO_ANSWER, Allowance, Backoff, Bounded, run_together, run_until
from horsies.engine.workflows import Advance
from horsies.errors import BrokerError, ConfigurationError, ErrorCode, HorsiesError, on_one_line
from horsies.model import events
from horsies.model.capacity import RunTimes
from horsies.model.fence import child_beat_s, silent_child_limit_s
from horsies.recovery.hooks import Asking, RecoveryHooks
from horsies.store.claims import ClaimStore, FinishStore
from horsies.store.database import Database, PoolSize
from horsies.store.endpoint import reach
from horsies.store.listen import is_heard
from horsies.store.migrate import migrate, schema_state
from horsies.store.operators import EventStore
from horsies.store.tasks import TaskStore
from horsies.store.workers import BeatStore, FleetStore, WorkerState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from datetime import datetime

    from horsies.engine.in_flight import Held
    from horsies.model.settings import AppConfig, WorkerConfig
    from horsies.model.workflow.plan import Definitions
    from horsies.recovery.hooks import HookFailure
    from horsies.store.endpoint import Links


# The parts of one worker, put together by `worker` and known to each other by name.


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the loops of a worker share. Nothing here decides anything."""

    app: AppConfig
    worker: WorkerConfig
    identity: Identity
    gate: Gate
    desk: Desk
    times: RunTimes
    hands: Hands
    claims: ClaimStore
    beats: BeatStore
    fleet: FleetStore
    reporter: Reporter
    health: Health
    lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while claims or starts are on their way, or someone looks at what may be claimed: one at a time, on one
    connection; whoever holds it knows that no other is at it."""
    is_stopping: bool = False
    degraded: str | None = None
    look_at_rows: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have running rows looked at now, instead of with the next beat."""
    runs_are_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have runs of workflows advanced now, instead of with the next poll."""
    tell_health: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have the worker's row say now how it fares, instead of with the next beat."""
    outcomes: Outcomes = field(init=False)
    asking: Asking = field(init=False)
    interruptions: Interruptions = field(init=False)
    settling: Settling = field(init=False)
    requeues: Requeues = field(init=False)
    pool: Pool = field(init=False)
    room: Room = field(init=False)
    returns: Returns = field(init=False)
    wake: Callable[[], None] = field(init=False)
    look: Callable[[], None] = field(init=False)
    hear_news: Callable[[], None] = field(init=False)
    expect: Callable[[float], None] = field(init=False)
    """A task will be due after so many seconds."""

    def backoff(self, duty: str) -> Backoff:
        """The pauses of one loop, which tells when the database goes away and comes back."""

        def changed(error: Exception | None) -> None:
            worker_id = str(self.identity.worker_id)
            if error is None:
                self.reporter.emit(events.DatabaseRestored(worker_id=worker_id, duty=duty))
            else:
                self.reporter.emit(events.DatabaseLost(worker_id=worker_id, duty=duty, error=on_one_line(error)))

        return Backoff(self.app.resilience, changed=changed)


# The end of a start: a worker is `running` once it hears of new work and of orders.


class Starting:
    """Says once that the worker has started, then waits for its end as services do."""

    name = "start"

    def __init__(self, parts: Parts, *, hears: asyncio.Event, tell: Callable[[], None]) -> None:
        self._parts = parts
        self._hears = hears
        self._tell = tell

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._say_once())

    async def _say_once(self) -> None:
        await self._hears.wait()
        await self._set_running()
        self._tell()
        await asyncio.Event().wait()

    async def _set_running(self) -> None:
        backoff = self._parts.backoff(self.name)
        while True:
            try:
                await self._parts.fleet.set_state(self._parts.identity.worker_id, WorkerState.RUNNING)
            except HorsiesError as error:
                await backoff.wait(error)
            else:
                return


# Dispatch until told to stop, then bring what is in hand to an end within the grace.

logger = logging.getLogger("horsies.worker")


class DispatchThenDrain:
    """The dispatcher with its end: no more claims, what waits is released, what runs gets its grace."""

    name = "dispatch"

    def __init__(self, dispatcher: Dispatcher, parts: Parts, hurry: asyncio.Event, allowance: Allowance) -> None:
        self._dispatcher = dispatcher
        self._parts = parts
        self._hurry = hurry
        """Set by a second signal: the grace is over."""
        self._allowance = allowance

    async def run(self, stop: asyncio.Event) -> None:
        await Bounded(self._dispatcher, self._allowance).run(stop)
        self._parts.room.is_closed = True
        await self._last_tries(self._announce())
        self._dispatcher.call_back_chunks()
        await self._let_finish()
        if self._running():
            await self._kill()
        await self._last_tries(self._give_back())

    async def _give_back(self) -> None:
        await self._parts.returns.give_back()
        await self._parts.returns.reconcile()  # a claim that was given up at the stop may have been carried out

    async def _announce(self) -> None:
        parts = self._parts
        parts.reporter.emit(
            events.WorkerDraining(
                worker_id=str(parts.identity.worker_id), running=len(self._running()), grace_s=parts.worker.grace_s
            )
        )
        await parts.fleet.set_state(parts.identity.worker_id, WorkerState.DRAINING)
        await self._parts.returns.release_waiting()

    async def _let_finish(self) -> None:
        """Wait for running tasks, as long as the grace lasts and nobody is in a hurry."""
        self._say_what_runs("  hint=a second Ctrl-C or SIGTERM ends them now")
        finished = asyncio.create_task(self._dispatcher.until_nothing_runs())
        hurried = asyncio.create_task(self._hurry.wait())
        waits: list[asyncio.Task[Any]] = [finished, hurried]
        await asyncio.wait(waits, timeout=self._parts.worker.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _kill(self) -> None:
        self._say_what_runs()
        self._dispatcher.kill_all()
        try:
            async with asyncio.timeout(self._parts.worker.kill_wait_s):
                await self._dispatcher.until_nothing_runs()
        except TimeoutError:
            logger.warning("processes of %d tasks are not gone", len(self._running()))

    def _say_what_runs(self, more: str = "") -> None:
        if running := self._running():
            names = ", ".join(f"{held.row.task_name} {held.key.task_id}" for held in running[:20])
            logger.info("still running: %s%s%s", names, " …" if len(running) > 20 else "", more)

    def _running(self) -> list[Held]:
        return self._parts.desk.all(Phase.HANDED)

    async def _last_tries(self, work: Awaitable[None]) -> None:
        try:
            async with self._allowance.spending():
                await work
        except (HorsiesError, TimeoutError) as error:
            logger.warning("while stopping: %s", on_one_line(error) or NO_ANSWER)


T = TypeVar("T")

LISTEN_WITHIN_S = 5.0
SURPLUS_IDLE_S = 3.0
LAST_TRIES_S = 3.5
"""For the statements of a stop, where the database does not answer."""
LAST_PASS_S = 1.0
"""For the reaper to end what it has in hand."""


def _tell_away(error: Exception | None) -> None:
    if error is not None:
        logger.warning("the database is away: %s", on_one_line(error))


class Worker:
    """One run of a worker process. `run` returns after a requested stop, and raises after any other end."""

    def __init__(
        self,
        app: AppConfig,
        worker: WorkerConfig,
        *,
        is_async: Callable[[str], bool],
        definitions: Definitions,
        hooks: RecoveryHooks | None = None,
        child_environment: Mapping[str, str] | None = None,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._app = app
        self._worker = worker
        self._is_async = is_async
        self._definitions = definitions
        self._hooks = hooks or RecoveryHooks()
        self._environment = dict(child_environment or {})
        self._probe_after_s = probe_after_s
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._last_tries = Allowance(LAST_TRIES_S)
        self._listeners: list[Callable[[events.Event], None]] = []
        self._parts_at_work: Parts | None = None
        self.identity = Identity.new()

    def listen(self, listener: Callable[[events.Event], None]) -> None:
        """Hear every event of this worker."""
        self._listeners.append(listener)

    def stop(self) -> None:
        """Stop gracefully; the second time, at once."""
        if self._stop.is_set():
            self._hurry.set()
        if self._parts_at_work is not None:
            self._parts_at_work.is_stopping = True
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped."""
        async with AsyncExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._obey(number, stack)
            await self._run(stack)

    def _obey(self, number: signal.Signals, stack: AsyncExitStack) -> None:
        loop, before = asyncio.get_running_loop(), signal.getsignal(number)
        loop.add_signal_handler(number, self.stop)
        # The loop would leave the signal to the system, which kills.
        stack.callback(signal.signal, number, before)
        stack.callback(loop.remove_signal_handler, number)

    async def _run(self, stack: AsyncExitStack) -> None:
        reached = await asyncio.to_thread(reach, self._app.broker)
        stack.callback(reached.release)
        parts, dispatcher = self._assemble(stack, reached.links)
        # Children come up before any connection is made: what they inherit of one would outlive it.
        logger.info("starting %d children", self._worker.processes)
        await self._unless_stopped(parts.pool.start())
        parts.pool.broken.add_done_callback(self._pool_broke)
        started_at = await self._unless_stopped(self._prepare(reached.links, parts))
        if started_at is not None:
            await self._serve(parts, dispatcher, reached.links, started_at)
        if parts.pool.broken.done():
            parts.pool.broken.result()

    def _assemble(self, stack: AsyncExitStack, links: Links) -> tuple[Parts, Dispatcher]:
        database, beats = self._open(stack, links)
        parts = self._parts(database, beats)
        parts.room, parts.returns = Room(parts), Returns(parts)
        dispatcher = Dispatcher(parts)
        parts.wake, parts.look, parts.hear_news = dispatcher.wake, dispatcher.look, dispatcher.hear_news
        parts.pool = Pool(self._child_spec(), self._worker.processes, Reports(parts))
        stack.push_async_callback(parts.pool.kill_all, "the worker has ended")
        return parts, dispatcher

    async def _serve(self, parts: Parts, dispatcher: Dispatcher, links: Links, started_at: datetime) -> None:
        wakeup, notices = Wakeup(parts), Notices(parts, links.direct, probe_after_s=self._probe_after_s)
        parts.expect = wakeup.expect
        dispatcher.wake()
        services = [
            Starting(parts, hears=notices.hears, tell=lambda: self._tell_started(parts)),
            wakeup,
            DispatchThenDrain(dispatcher, parts, self._hurry, self._last_tries),
            Snapshots(parts, started_at),
            # A worker that drains for long is as good a judge as another.
            Bounded(reaper_of(parts), Allowance(LAST_PASS_S)),
            Bounded(parts.outcomes, self._last_tries),
            Bounded(Advance(parts, self._definitions), self._last_tries),
            Bounded(parts.interruptions, self._last_tries),
            Bounded(parts.reporter, self._last_tries),
            Minutes(parts.reporter, self.identity),
            Bounded(Telling(parts.reporter, EventStore(parts.claims.database)), self._last_tries),
            notices,
            Heartbeat(parts, came_back=lambda: self._come_back(parts)),
        ]
        try:
            await run_together(services, self._stop_of(parts))
        finally:
            await self._leave(parts)

    def _parts(self, database: Database, beats: Database) -> Parts:
        app, worker = self._app, self._worker
        caps = {queue.name for queue in app.custom_queues or () if queue.max_concurrency is not None}
        times = RunTimes()
        hands = Hands(
            times,
            is_async=self._is_async,
            is_capped=lambda queue: app.cluster_wide_cap is not None or queue in caps,
        )
        hands.max_chunk = worker.max_chunk
        reporter = Reporter(EventStore(database), Backoff(app.resilience))
        for listener in self._listeners:
            reporter.listen(listener)
        parts = Parts(
            app=app,
            worker=worker,
            identity=self.identity,
            gate=Gate(app.recovery),
            desk=Desk(),
            times=times,
            hands=hands,
            claims=ClaimStore(database),
            beats=BeatStore(database=beats, hostname=self.identity.hostname),
            fleet=FleetStore(beats),
            reporter=reporter,
            health=Health(recovery=app.recovery),
        )
        parts.outcomes = Outcomes(
            FinishStore(database),
            parts.desk,
            reporter,
            gate=parts.gate,
            backoff=parts.backoff("outcomes"),
            max_crashes=app.recovery.max_crashes,
            # The dispatcher that it wakes and the timer that it sets come later.
            stored=lambda: parts.wake(),  # noqa: PLW0108
            retried=lambda delay_s: parts.expect(delay_s),  # noqa: PLW0108
            nodes_ended=parts.runs_are_due.set,
            unknown=self._tell_unknown(reporter),
        )
        parts.asking = Asking(self._hooks, failed=self._tell_hook_failed(reporter))
        parts.interruptions = Interruptions(parts.asking, TaskStore(database), parts.backoff("interruptions"))
        if parts.asking.tells_interruptions:  # else nobody need hear of each task that ends
            reporter.listen(parts.interruptions.hear)
        parts.requeues = Requeues(database, parts.desk, parts.backoff("requeues"))
        parts.settling = Settling(
            parts.outcomes,
            TaskStore(database),
            reporter,
            max_crashes=app.recovery.max_crashes,
            settled=parts.interruptions.settled,
        )
        return parts

    def _tell_hook_failed(self, reporter: Reporter) -> Callable[[HookFailure], None]:
        def tell(failure: HookFailure) -> None:
            worker_id = str(self.identity.worker_id)
            reporter.emit(
                events.HookFailed(worker_id=worker_id, hook=failure.hook, error=failure.error, task_id=failure.task_id)
            )

        return tell

    def _tell_unknown(self, reporter: Reporter) -> Callable[[str], None]:
        told: set[str] = set()

        def tell(name: str) -> None:
            if name not in told:
                told.add(name)
                worker_id = str(self.identity.worker_id)
                reporter.emit(events.TaskUnknown(worker_id=worker_id, task_name=name, app=self._worker.app_locator))

        return tell

    def _child_spec(self) -> ChildSpec:
        recovery, worker = self._app.recovery, self._worker
        return ChildSpec(
            app_locator=worker.app_locator,
            modules=tuple(worker.imports) or None,
            environment=self._environment,
            async_concurrency=worker.async_concurrency,
            beat_s=child_beat_s(recovery),
            silent_limit_s=silent_child_limit_s(recovery),
            unanswered_limit_s=recovery.running_stale_threshold_ms / 1000,
            max_tasks_per_child=worker.max_tasks_per_child,
            max_memory_per_child_mb=worker.max_memory_per_child_mb,
        )

    def _open(self, stack: AsyncExitStack, links: Links) -> tuple[Database, Database]:
        broker, worker = self._app.broker, self._worker
        size = PoolSize(
            smallest=1,
            largest=worker.parent_pool_size + worker.parent_max_overflow,
            wait_s=broker.pool_timeout,
            # An idle worker holds one: what a burst has opened is soon closed again.
            idle_s=min(broker.pool_recycle, SURPLUS_IDLE_S),
            check_idle=broker.pool_pre_ping,
            setting="broker.worker_pool_size",
        )
        link = replace(links.pooled, plans_once=True)
        database, beats = Database(link, size), Database(link, replace(size, largest=1))
        for each in (database, beats):
            stack.callback(each.terminate)  # a server that does not answer would not answer a farewell either
        return database, beats

    async def _prepare(self, links: Links, parts: Parts) -> datetime:
        """Migrate or refuse, see that notifications arrive, and write the row of this run; returns when that was."""
        backoff = Backoff(self._app.resilience, changed=_tell_away)
        while True:
            try:
                await self._bring_schema_up(links)
                await self._require_listen(links, parts.claims.database)
                return await self._register(parts)
            except BrokerError as error:
                if not error.retryable:
                    raise
                await backoff.wait(error)

    async def _register(self, parts: Parts) -> datetime:
        sent_at = time.monotonic()
        started_at = await parts.fleet.register(self.identity.run_of(self._worker, self._app))
        parts.gate.beaten(sent_at)
        return started_at

    async def _bring_schema_up(self, links: Links) -> None:
        async with Database(replace(links.direct, statement_timeout_s=None), PoolSize(largest=1)) as direct:
            state = await schema_state(direct)
            is_empty = not state.applied
            if is_empty or self._app.broker.database_url.is_embedded or self._app.broker.auto_migrate:
                for migration in await migrate(direct):
                    logger.info("applied migration %s", migration)
            else:
                state.refuse_unless_current()

    async def _require_listen(self, links: Links, database: Database) -> None:
        if not await is_heard(database, links.direct, within_s=LISTEN_WITHIN_S):
            raise ConfigurationError(
                f"notifications do not arrive at {links.direct.masked_url}",
                code=ErrorCode.BROKER_INIT_FAILED,
                hint="set broker.session_database_url to the server itself, past any pooler",
            )

    async def _come_back(self, parts: Parts) -> None:
        """Others have declared this run lost: give up its claims and go on under a new id."""
        async with parts.lane:
            await parts.returns.release_waiting()
            former = self.identity.renew()
        await parts.fleet.register(self.identity.run_of(self._worker, self._app))
        state = WorkerState.DRAINING if parts.is_stopping else WorkerState.RUNNING
        await parts.fleet.set_state(self.identity.worker_id, state)
        parts.reporter.emit(events.WorkerReturned(worker_id=str(self.identity.worker_id), former_worker_id=str(former)))

    def _stop_of(self, parts: Parts) -> asyncio.Event:
        self._parts_at_work = parts
        if self._stop.is_set():
            parts.is_stopping = True
        return self._stop

    async def _leave(self, parts: Parts) -> None:
        unstored = parts.outcomes.unstored
        if unstored:
            logger.error("%d outcomes could not be stored; their rows are left to recovery", unstored)
        try:
            async with self._last_tries.spending():
                for worker_id in (*self.identity.former_ids, self.identity.worker_id):
                    await parts.fleet.set_state(worker_id, WorkerState.STOPPED)
        except (HorsiesError, TimeoutError) as error:
            logger.warning("could not write that the worker has stopped: %s", on_one_line(error) or NO_ANSWER)
        ran, worker_id = parts.reporter.account.in_all, str(self.identity.worker_id)
        parts.reporter.emit(
            events.WorkerStopped(worker_id=worker_id, ran=ran.count, failed=ran.failed, unstored=unstored)
        )

    def _tell_started(self, parts: Parts) -> None:
        parts.reporter.emit(
            events.WorkerStarted(
                worker_id=str(self.identity.worker_id),
                host=f"{self.identity.hostname}:{self.identity.pid}",
                queues=tuple(self._worker.queues or ()),
                processes=self._worker.processes,
                database=parts.claims.database.link.masked_url,
            )
        )

    def _pool_broke(self, broken: asyncio.Future[None]) -> None:
        if not broken.cancelled() and (error := broken.exception()) is not None:
            logger.critical("children cannot be started any more: %s", on_one_line(error))
            self._stop.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None, and nothing done any more, where a stop is asked for before it is there."""
        doing = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if doing.done():
            return doing.result()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return None
