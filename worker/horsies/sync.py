"""One event loop in a thread of its own, through which synchronous code calls the one asynchronous implementation."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

from horsies.errors import BrokerError, BrokerErrorCode, HorsiesError
from horsies.model.result import Err, Ok

P = ParamSpec("P")
T = TypeVar("T")


class InsideEventLoop(HorsiesError):
    """A blocking call was made on a thread whose event loop is running; waiting there would stop that loop for ever."""

    def __init__(self) -> None:
        super().__init__(
            "a blocking call inside a running event loop",
            code=BrokerErrorCode.ASYNC_CONTEXT,
            hint="await the _async twin instead",
        )


class BridgeUnavailable(BrokerError):
    """A blocking call came when no other thread could do its work any more: the interpreter ends, or has no thread."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=BrokerErrorCode.NO_BROKER, retryable=False)


class Bridge:
    """Runs coroutines for callers without an event loop, from any thread, and also in a forked child.

    The thread starts with the first call. It is a daemon, so it never keeps a process alive, and calls made by `atexit`
    handlers are still served; after those threads stand still, and calls are refused with `NoBridge`. A child made by
    `fork` has no such thread and starts its own.
    """

    def __init__(self) -> None:
        # One that its holder may take again: a signal handler or a finalizer may call in the middle of a first call.
        self._starting = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for `coroutine` on the bridge's loop; an interrupt of the caller cancels it."""
        if is_inside_event_loop():
            coroutine.close()
            raise InsideEventLoop
        try:
            loop = self._running_loop()
        except BridgeUnavailable:
            coroutine.close()
            raise
        call = _BridgeCall(coroutine)
        loop.call_soon_threadsafe(call.begin)
        try:
            return call.result()
        except BaseException:
            loop.call_soon_threadsafe(call.abandon)
            raise

    def owns_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        return loop is self._loop

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if sys.is_finalizing():
            raise BridgeUnavailable("the interpreter is shutting down, and its other threads stand still")
        with self._starting:
            if self._loop is None:
                self._loop = _started_loop()
            return self._loop

    def _reset_after_fork(self) -> None:
        # The parent may have forked while holding the lock, and its loop has no thread here.
        self._starting = threading.RLock()
        self._loop = None


def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreadExecutor())
    try:
        threading.Thread(target=loop.run_forever, name="horsies-bridge", daemon=True).start()
    except RuntimeError as error:
        loop.close()
        raise BridgeUnavailable(f"no thread for blocking calls: {error}") from error
    return loop


class DaemonThreadExecutor(ThreadPoolExecutor):
    """One daemon thread a call. The usual executors refuse work once the interpreter exits; names must be looked up
    and servers started for an `atexit` handler too."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()

        def work() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # whoever asked hears of it
                done.set_exception(error)

        done.set_running_or_notify_cancel()
        threading.Thread(target=work, name="horsies-bridge-work", daemon=True).start()
        return done


class _BridgeCall(Generic[T]):
    """A coroutine that its caller may give up at any instant, even before it has begun.

    One lock says whether it is under way. A future that follows a future, each with callbacks and one with a condition,
    takes a fifth longer for the way to the other thread and back.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[None] | None = None
        self._is_abandoned = False
        self._outcome: Ok[T] | Err[BaseException] | None = None
        self._finished = threading.Lock()
        self._finished.acquire()

    def begin(self) -> None:
        if self._is_abandoned:
            self._coroutine.close()
        else:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def result(self) -> T:
        """Wait in the caller's thread for what comes of it."""
        self._finished.acquire()
        ended, self._outcome = self._outcome, None  # nor does it keep an error whose traceback keeps this
        assert ended is not None  # noqa: S101  # the lock is let go of afterwards
        if isinstance(ended, Err):
            raise ended.error
        return ended.value

    def abandon(self) -> None:
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._outcome = Ok(await self._coroutine)
        except BaseException as error:  # noqa: BLE001  # the caller hears of it
            self._outcome = Err(error)
        finally:
            self._finished.release()


def is_inside_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


BRIDGE = Bridge()
