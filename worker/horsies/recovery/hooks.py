"""Calls recovery hooks.

Hooks are user code: a slow, failing or wrong hook loses its own answer and affects nothing else. They never run on the
event loop of the sweep, which also sends the worker's heartbeats: each call runs in a daemon thread, and the coroutines
of each hook run on their own loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, cast

from horsies.codec.canonical_json import replace_unstorable
from horsies.model.recovery.decision import RecoveredWorkers, RecoveryContext
from horsies.model.retry import Recovery, RecoveryKind, answer_error
from horsies.model.task_result import safe_stringify
from horsies.recovery.hook_registry import RecoveryHooks, RegisteredHook
from horsies.sync import DaemonThreadExecutor

HOOK_TIMEOUT_S: Final = 5.0
HOOK_CONCURRENCY: Final = 20
MAX_LATE_CALLS: Final = 20
"""A hook is suspended after this many timeouts in a row, and not called while this many calls have not returned."""
SUSPEND_S: Final = 60.0
MAX_FAILURE_CHARS: Final = 500

T = TypeVar("T")

logger = logging.getLogger("horsies.recovery")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookAnswer:
    """The first answer of the hooks about one task that is not default, and the hook that gave it."""

    answer: Recovery
    hook: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailure:
    """A failed call of a hook; `task_id` is one of the tasks concerned."""

    hook: str
    error: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class _CallResult:
    value: object = None
    failure: str | None = None
    is_late: bool = False


def log_failure(failure: HookFailure) -> None:
    logger.error("recovery hook failed", extra={"hook": failure.hook, "error": failure.error})


class HookCaller:
    """Calls the hooks of one app for a sweep; exceptions of hooks are caught.

    `on_failure` is called once per failure and batch; by default failures are logged.
    """

    def __init__(
        self,
        hooks: RecoveryHooks,
        *,
        on_failure: Callable[[HookFailure], None] = log_failure,
        limit_s: float = HOOK_TIMEOUT_S,
    ) -> None:
        self._recovery = [_Hook(hook, limit_s) for hook in hooks.recovery]
        self._interrupted = [_Hook(hook, limit_s) for hook in hooks.interrupted]
        self._workers_recovered = [_Hook(hook, limit_s) for hook in hooks.workers_recovered]
        self._on_failure = on_failure

    @property
    def has_hooks(self) -> bool:
        return bool(self._recovery or self._interrupted or self._workers_recovered)

    @property
    def has_interrupted_hooks(self) -> bool:
        return len(self._interrupted) > 0

    async def ask(self, contexts: Sequence[RecoveryContext]) -> list[HookAnswer]:
        """Return one answer per context, in the same order."""
        if not self._recovery:
            return [HookAnswer(answer=Recovery.default())] * len(contexts)
        batch = _Batch(self._on_failure)
        return await _gather_limited([partial(self._ask_about, context, batch) for context in contexts])

    async def notify_interrupted(self, contexts: Sequence[RecoveryContext]) -> None:
        """Call the interrupted hooks; to be called after the recovery of these tasks is committed."""
        batch = _Batch(self._on_failure)
        calls = [
            partial(batch.call, hook, context, context.task.task_id)
            for context in contexts
            for hook in self._interrupted
        ]
        await _gather_limited(calls)

    async def notify_workers_recovered(self, recovered: RecoveredWorkers) -> None:
        batch = _Batch(self._on_failure)
        for hook in self._workers_recovered:
            await batch.call(hook, recovered, None)

    async def _ask_about(self, context: RecoveryContext, batch: _Batch) -> HookAnswer:
        for hook in self._recovery:
            result = await batch.call(hook, context, context.task.task_id, check=_answer_error)
            if isinstance(result.value, Recovery) and result.value.kind is not RecoveryKind.DEFAULT:
                return HookAnswer(answer=result.value, hook=hook.name)
        return HookAnswer(answer=Recovery.default())


class _Hook:
    """A hook with its timeout, its pending calls and its suspension after repeated timeouts."""

    def __init__(self, registered: RegisteredHook, limit_s: float) -> None:
        function = registered.function
        # An instance with __call__ has no name of its own; use that of its class.
        named = cast("Callable[..., object]", function if hasattr(function, "__qualname__") else type(function))
        self.name = f"{named.__module__}.{named.__qualname__}"
        self._function = function
        self._loop = registered.loop
        self._limit_s = limit_s
        self._threads = DaemonThreadExecutor()
        self._pending: set[Future[_CallResult]] = set()
        self._late_in_a_row = 0
        self._suspended_until = 0.0

    async def call(self, argument: object) -> _CallResult:
        # A thread cannot be stopped: without this limit, a hook that hangs would leave a thread behind for every task.
        if len(self._pending) >= MAX_LATE_CALLS or time.monotonic() < self._suspended_until:
            return _CallResult(failure=f"suspended after {MAX_LATE_CALLS} timeouts in a row")
        future = self._threads.submit(self._invoke, argument)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        try:
            result = await asyncio.wait_for(asyncio.wrap_future(future), self._limit_s)
        except TimeoutError:
            result = self._timed_out()
        self._late_in_a_row = self._late_in_a_row + 1 if result.is_late else 0
        if self._late_in_a_row >= MAX_LATE_CALLS:
            self._suspended_until = time.monotonic() + SUSPEND_S
            self._late_in_a_row = 0
        return result

    def _invoke(self, argument: object) -> _CallResult:
        try:
            value = self._function(argument)
            return self._loop.run(self._await_in_time(value)) if inspect.isawaitable(value) else _CallResult(value)
        except BaseException as error:  # noqa: BLE001  # user code may raise anything
            return _failed_result(error)

    async def _await_in_time(self, value: Awaitable[object]) -> _CallResult:
        task = asyncio.create_task(_await_result(value))
        done, _ = await asyncio.wait([task], timeout=self._limit_s)
        if done:
            return task.result()
        task.cancel()  # not awaited: it may ignore the cancellation
        return self._timed_out()

    def _timed_out(self) -> _CallResult:
        return _CallResult(failure=f"no answer within {self._limit_s:g} s", is_late=True)


class _Batch:
    """Calls hooks for the tasks of one batch and reports each distinct failure once."""

    def __init__(self, on_failure: Callable[[HookFailure], None]) -> None:
        self._on_failure = on_failure
        self._reported: set[tuple[str, str]] = set()

    async def call(
        self,
        hook: _Hook,
        argument: object,
        task_id: str | None,
        *,
        check: Callable[[object], str | None] = lambda _: None,
    ) -> _CallResult:
        result = await hook.call(argument)
        error = result.failure or check(result.value)
        if error is None:
            return result
        # The error is stored in an event and its text comes from user code.
        error = replace_unstorable(error)[:MAX_FAILURE_CHARS]
        if (hook.name, error) not in self._reported:
            self._reported.add((hook.name, error))
            self._on_failure(HookFailure(hook=hook.name, error=error, task_id=task_id))
        return _CallResult(failure=f"{hook.name}: {error}")


async def _await_result(value: Awaitable[object]) -> _CallResult:
    try:
        return _CallResult(await value)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # SystemExit or KeyboardInterrupt would stop the loop
        return _failed_result(error)


def _failed_result(error: BaseException) -> _CallResult:
    return _CallResult(failure=f"{type(error).__qualname__}: {safe_stringify(str, error)}")


def _answer_error(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Recovery):
        return f"returned {type(value).__qualname__} instead of a Recovery"
    return answer_error(value)


async def _gather_limited(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run calls concurrently, at most `HOOK_CONCURRENCY` at a time; returns their results in order."""
    slots = asyncio.Semaphore(HOOK_CONCURRENCY)

    async def run(call: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await call()

    return list(await asyncio.gather(*(run(call) for call in calls)))
