from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from horsies.sync import Bridge, BridgeUnavailable, InsideEventLoop


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_call_returns_the_result() -> None:
    assert Bridge().run(double(21)) == 42


def test_exception_reaches_the_caller() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        Bridge().run(fail())


def test_many_threads_share_one_loop() -> None:
    bridge = Bridge()

    async def loop_id() -> int:
        return id(asyncio.get_running_loop())

    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(lambda: bridge.run(loop_id())) for _ in range(100)]
    assert len({call.result() for call in calls}) == 1


async def test_call_inside_a_running_loop_raises() -> None:
    with pytest.raises(InsideEventLoop):
        Bridge().run(double(1))


def test_interrupted_caller_cancels_the_coroutine() -> None:
    bridge = Bridge()
    cancelled = threading.Event()

    async def wait_forever() -> None:
        try:
            while True:  # CPython does not see a signal that arrives just before the caller starts to wait
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(1)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        bridge.run(wait_forever())
    assert cancelled.wait(5)


def test_forked_child_starts_its_own_loop() -> None:
    code = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from horsies.sync import BRIDGE\n"
        "async def one(): return 1\n"
        "BRIDGE.run(one())\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(BRIDGE.run(one()))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_calls_in_atexit_handlers_work() -> None:
    code = (
        "import atexit\n"
        "from horsies.sync import BRIDGE\n"
        "async def speak(): print('called')\n"
        "atexit.register(lambda: BRIDGE.run(speak()))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (result.stdout, result.stderr) == ("called\n", "")


def test_call_after_atexit_handlers_raises() -> None:
    code = (
        "import os\n"
        "from horsies.sync import BRIDGE, BridgeUnavailable\n"
        "async def one(): return 1\n"
        "class Late:\n"
        "    def __del__(self):\n"
        "        try: BRIDGE.run(one())\n"
        "        except BridgeUnavailable: os.write(1, b'raised')\n"
        "BRIDGE.run(one())\n"
        "late = Late()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (result.stdout, result.stderr, result.returncode) == ("raised", "", 0)


def test_call_raises_without_a_thread_and_later_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    bridge = Bridge()
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", fail)
        with pytest.raises(BridgeUnavailable, match="can't start new thread"):
            bridge.run(double(1))
    assert bridge.run(double(1)) == 2
