"""Runs the asynchronous implementation for synchronous callers, on an event loop in a background thread.

asyncio is imported with the first call: it takes 3 MB, and most child processes of a worker make none.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from horsies.errors import BrokerError, BrokerErrorCode, HorsiesError

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")


class InsideEventLoop(HorsiesError):
    """A blocking call was made inside a running event loop, where it would block that loop."""

    def __init__(self) -> None:
        super().__init__(
            "blocking call inside a running event loop",
            code=BrokerErrorCode.ASYNC_CONTEXT,
            hint="await the _async method instead",
        )


class BridgeUnavailable(BrokerError):
    """A blocking call cannot run in the background thread: the interpreter is exiting, or no thread can be started."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=BrokerErrorCode.NO_BROKER, retryable=False)


class Bridge:
    """Runs coroutines for callers without an event loop, from any thread, even after a fork.

    The thread starts with the first call and is a daemon, so it does not keep the process alive. Calls from `atexit`
    handlers still work; after those, threads no longer run and calls raise BridgeUnavailable. A forked child has no
    such thread and starts its own.
    """

    def __init__(self) -> None:
        # Reentrant, because a signal handler or finalizer may make a call while the first call starts the thread.
        self._start_lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the background loop and wait for it; cancels it if the caller is interrupted."""
        if is_inside_event_loop():
            coroutine.close()  # or Python warns that it was never awaited
            raise InsideEventLoop
        try:
            loop = self._running_loop()
        except BridgeUnavailable:
            coroutine.close()
            raise
        import asyncio  # after the check that the interpreter still imports

        call = _Call(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(call.run(), loop).result()
        except BaseException:
            # After a KeyboardInterrupt the coroutine is running or about to start; if it has ended, this has no effect.
            loop.call_soon_threadsafe(call.cancel)
            raise

    def owns_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        return loop is self._loop

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if sys.is_finalizing():
            raise BridgeUnavailable("the interpreter is shutting down; background threads no longer run")
        with self._start_lock:
            if self._loop is None:
                self._loop = _start_loop()
            return self._loop

    def _reset_after_fork(self) -> None:
        # Another thread of the parent may have held the lock, and the parent's loop has no thread here.
        self._start_lock = threading.RLock()
        self._loop = None


def _start_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreadExecutor())
    try:
        threading.Thread(target=loop.run_forever, name="horsies-bridge", daemon=True).start()
    except RuntimeError as error:
        loop.close()
        raise BridgeUnavailable(f"cannot start the thread for blocking calls: {error}") from error
    return loop


class DaemonThreadExecutor(ThreadPoolExecutor):
    """One daemon thread per call. Standard executors reject work at interpreter exit, but an `atexit` handler may
    still need to resolve host names and start servers."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # passed to the caller
                future.set_exception(error)

        future.set_running_or_notify_cancel()  # a running future cannot be cancelled, and neither can the thread
        threading.Thread(target=work, name="horsies-bridge-work", daemon=True).start()
        return future


class _Call(Generic[T]):
    """A coroutine that can be cancelled at any time, even before it starts. Both methods run on the event loop.

    The future of `run_coroutine_threadsafe` is not enough: an interrupt may arrive before that function returns it.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False

    async def run(self) -> T:
        import asyncio

        if self._is_cancelled:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


def is_inside_event_loop() -> bool:
    if sys.modules.get("asyncio") is None:  # no loop runs without it; None while the interpreter exits
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


BRIDGE = Bridge()
