"""Asking hooks, which are user code: slow, failing and lying ones cost their own answer and nothing else.

No hook runs on the event loop that sweeps, since that loop also writes the worker's signs of life. Each call has a
thread that never keeps the process alive; the coroutines of a hook run on a loop of their own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar, cast

from horsies.codec.canonical_json import replace_unstorable
from horsies.errors import ConfigurationError, ErrorCode, SourceLocation
from horsies.model.recovery.decision import RecoveredWorkers, Recovery, RecoveryContext, RecoveryKind, answer_error
from horsies.model.task_result import safe_stringify
from horsies.sync import Bridge, DaemonThreadExecutor

HOOK_TIMEOUT_S: Final = 5.0
HOOK_CONCURRENCY: Final = 20
MAX_LATE_CALLS: Final = 20
"""A hook that was late so often in a row gets a rest, and longer while so many of its calls have not come back."""
SUSPEND_S: Final = 60.0
MAX_FAILURE_CHARS: Final = 500

T = TypeVar("T")

logger = logging.getLogger("horsies.recovery")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookAnswer:
    """What the hooks say about one task: the first answer that is not default, and whose it is.

    `failure` tells of a hook before it that raised, ran out of time or gave no answer.
    """

    answer: Recovery
    hook: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailure:
    """A hook that did not do its duty; `task_id` is one of the tasks for which it did not."""

    hook: str
    error: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class _CallResult:
    """What became of one call."""

    value: object = None
    failure: str | None = None
    is_late: bool = False


def log_failure(failure: HookFailure) -> None:
    logger.error("the recovery hook %s failed: %s", failure.hook, failure.error)


class HookCaller:
    """The hooks of one app, asked and told by a sweep. Nothing here raises what a hook did.

    `failed` hears of each failure of a hook once a batch; unless given, failures are logged.
    """

    def __init__(
        self,
        hooks: RecoveryHooks,
        *,
        on_failure: Callable[[HookFailure], None] = log_failure,
        limit_s: float = HOOK_TIMEOUT_S,
    ) -> None:
        self._recovery = [_Hook(each, limit_s) for each in hooks.recovery]
        self._interrupted = [_Hook(each, limit_s) for each in hooks.interrupted]
        self._workers = [_Hook(each, limit_s) for each in hooks.workers_recovered]
        self._failed = on_failure

    @property
    def has_interrupted_hooks(self) -> bool:
        """Whether anybody wants to hear of them."""
        return len(self._interrupted) > 0

    async def ask(self, contexts: Sequence[RecoveryContext]) -> list[HookAnswer]:
        """An answer for each context, in their order."""
        if not self._recovery:
            return [HookAnswer(answer=Recovery.default())] * len(contexts)
        batch = _Batch(self._failed)
        return await _gather_limited([partial(self._ask_about, each, batch) for each in contexts])

    async def notify_interrupted(self, contexts: Sequence[RecoveryContext]) -> None:
        """Tell that these tasks were interrupted; after the commit that settled them."""
        batch = _Batch(self._failed)
        calls = [
            partial(batch.call, hook, context, context.task.task_id)
            for context in contexts
            for hook in self._interrupted
        ]
        await _gather_limited(calls)

    async def notify_workers_recovered(self, recovered: RecoveredWorkers) -> None:
        """Tell what one sweep has settled."""
        batch = _Batch(self._failed)
        for hook in self._workers:
            await batch.call(hook, recovered, None)

    async def _ask_about(self, context: RecoveryContext, batch: _Batch) -> HookAnswer:
        failure = None
        for hook in self._recovery:
            said = await batch.call(hook, context, context.task.task_id, check=_answer_error)
            failure = failure or said.failure
            if isinstance(said.value, Recovery) and said.value.kind is not RecoveryKind.DEFAULT:
                return HookAnswer(answer=said.value, hook=hook.name, failure=failure)
        return HookAnswer(answer=Recovery.default(), failure=failure)


class _Hook:
    """One function, and the calls of it that have not come back."""

    def __init__(self, registered: RegisteredHook, limit_s: float) -> None:
        self.name = _name_of(registered.function)
        self._function = registered.function
        self._loop = registered.loop
        self._limit_s = limit_s
        self._threads = DaemonThreadExecutor()
        self._pending: set[Future[_CallResult]] = set()
        self._late_in_a_row = 0
        self._suspended_until = 0.0

    async def call(self, argument: object) -> _CallResult:
        if len(self._pending) >= MAX_LATE_CALLS or time.monotonic() < self._suspended_until:
            return _CallResult(failure=f"not called: it was late {MAX_LATE_CALLS} times in a row")
        said = await self._call(argument)
        self._late_in_a_row = self._late_in_a_row + 1 if said.is_late else 0
        if self._late_in_a_row >= MAX_LATE_CALLS:
            self._suspended_until = time.monotonic() + SUSPEND_S
            self._late_in_a_row = 0
        return said

    async def _call(self, argument: object) -> _CallResult:
        coming = self._threads.submit(self._invoke, argument)
        self._pending.add(coming)
        coming.add_done_callback(self._pending.discard)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(coming), self._limit_s)
        except TimeoutError:
            return self._timed_out()

    def _invoke(self, argument: object) -> _CallResult:
        try:
            value = self._function(argument)
            return self._loop.run(self._await(value)) if inspect.isawaitable(value) else _CallResult(value)
        except BaseException as error:  # noqa: BLE001  # user code may raise anything
            return _failed_result(error)

    async def _await(self, value: Awaitable[object]) -> _CallResult:
        saying = asyncio.create_task(_await_result(value))
        done, _ = await asyncio.wait([saying], timeout=self._limit_s)
        if done:
            return saying.result()
        saying.cancel()  # and not waited for: it may take no notice
        return self._timed_out()

    def _timed_out(self) -> _CallResult:
        return _CallResult(failure=f"no answer within {self._limit_s:g} s", is_late=True)


class _Batch:
    """Calls for the tasks of one batch, of which each failure is told once."""

    def __init__(self, failed: Callable[[HookFailure], None]) -> None:
        self._failed = failed
        self._told: set[tuple[str, str]] = set()

    async def call(
        self,
        hook: _Hook,
        argument: object,
        task_id: str | None,
        *,
        check: Callable[[object], str | None] = lambda _: None,
    ) -> _CallResult:
        said = await hook.call(argument)
        failure = said.failure or check(said.value)
        if failure is None:
            return said
        failure = replace_unstorable(failure)[:MAX_FAILURE_CHARS]
        self._report_once(HookFailure(hook=hook.name, error=failure, task_id=task_id))
        return _CallResult(failure=f"{hook.name}: {failure}")

    def _report_once(self, failure: HookFailure) -> None:
        if (failure.hook, failure.error) not in self._told:
            self._told.add((failure.hook, failure.error))
            self._failed(failure)


async def _await_result(value: Awaitable[object]) -> _CallResult:
    try:
        return _CallResult(await value)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # an order to stop would end the loop
        return _failed_result(error)


def _failed_result(error: BaseException) -> _CallResult:
    return _CallResult(failure=f"{type(error).__qualname__}: {safe_stringify(str, error)}")


def _answer_error(value: object) -> str | None:
    if value is None:
        return None
    return (
        answer_error(value) if isinstance(value, Recovery) else f"answered with {type(value).__qualname__}, no Recovery"
    )


async def _gather_limited(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results in the order of the calls, of which so many run side by side."""
    turns = asyncio.Semaphore(HOOK_CONCURRENCY)

    async def in_turn(call: Callable[[], Awaitable[T]]) -> T:
        async with turns:
            return await call()

    return list(await asyncio.gather(*(in_turn(call) for call in calls)))


def _name_of(function: object) -> str:
    named = cast("Callable[..., object]", function if hasattr(function, "__qualname__") else type(function))
    return f"{named.__module__}.{named.__qualname__}"


# The functions that an app wants asked or told when work is recovered.

RecoveryHook: TypeAlias = Callable[[RecoveryContext], Recovery | Awaitable[Recovery | None] | None]
InterruptedHook: TypeAlias = Callable[[RecoveryContext], object]
WorkersRecoveredHook: TypeAlias = Callable[[RecoveredWorkers], object]

H = TypeVar("H", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredHook:
    """A function, and the event loop that its coroutines run on for as long as the app lives.

    One each: a coroutine that blocks its loop blocks itself alone, and what one has connected stays on its loop.
    """

    function: Callable[..., object]
    loop: Bridge = field(default_factory=Bridge)


class HookList:
    """Functions of one argument, each once, in the order of registration."""

    def __init__(self) -> None:
        self._hooks: list[RegisteredHook] = []

    def __iter__(self) -> Iterator[RegisteredHook]:
        return iter(tuple(self._hooks))

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: H) -> H:
        if fault := _signature_error(hook):
            raise ConfigurationError(
                fault,
                code=ErrorCode.CONFIG_INVALID_CHILD_HOOK,
                hint="give a function of one argument, plain or async",
                location=SourceLocation.of_caller(),
            )
        if hook not in [each.function for each in self._hooks]:
            self._hooks.append(RegisteredHook(function=hook))
        return hook


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryHooks:
    """What one app has registered."""

    recovery: HookList = field(default_factory=HookList)
    interrupted: HookList = field(default_factory=HookList)
    workers_recovered: HookList = field(default_factory=HookList)


def _signature_error(hook: object) -> str | None:
    if not callable(hook):
        return f"a recovery hook must be a function, got {type(hook).__qualname__}"
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        return "a recovery hook is called with one argument"
    except ValueError:
        return None  # written in C, and silent about its parameters
    return None
