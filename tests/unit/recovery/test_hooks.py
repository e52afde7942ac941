"""Recovery hooks are user code: no failure of a hook affects the sweep."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from horsies.model.recovery.decision import RecoveredWorkers, RecoveryContext, RecoveryReason
from horsies.model.retry import Recovery, RecoveryKind
from horsies.model.task import TaskInfo, TaskStatus
from horsies.recovery.hook_registry import RecoveryHooks
from horsies.recovery.hooks import MAX_LATE_CALLS, HookCaller, HookFailure

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def context(number: int = 0) -> RecoveryContext:
    task = TaskInfo(
        task_id=str(number),
        task_name="mail.send",
        status=TaskStatus.RUNNING,
        queue_name="default",
        priority=100,
        retry_count=0,
        max_retries=0,
        crash_count=0,
        flags={},
        sent_at=NOW,
        enqueued_at=NOW,
    )
    return RecoveryContext(
        task=task,
        recovering_worker_id=None,
        previous_worker_id=None,
        reason=RecoveryReason.HEARTBEAT_LOST,
        dry_run=False,
    )


def make_caller(
    *hooks: Callable[..., Any], limit_s: float = 5.0, failures: list[HookFailure] | None = None
) -> HookCaller:
    registered = RecoveryHooks()
    for hook in hooks:
        registered.recovery.add(hook)
    return HookCaller(registered, on_failure=(failures if failures is not None else []).append, limit_s=limit_s)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Unblocks blocking hooks, at the latest at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def skip(_: RecoveryContext) -> Recovery:
    return Recovery.skip()


async def skip_async(_: RecoveryContext) -> Recovery:
    return Recovery.skip()


def return_default(_: RecoveryContext) -> Recovery:
    return Recovery.default()


def back_off(_: RecoveryContext) -> Recovery:
    return Recovery.fail_with_backoff()


def return_none(_: RecoveryContext) -> None:
    return None


@pytest.mark.parametrize("hook", [skip, skip_async])
async def test_hooks_may_be_sync_or_async(hook: Callable[..., Any]) -> None:
    (answered,) = await make_caller(hook).ask([context()])
    assert (answered.answer.kind, answered.hook) == (
        RecoveryKind.SKIP,
        f"{__name__}.{hook.__name__}",
    )


async def test_without_hooks_answers_are_default() -> None:
    assert [each.answer.kind for each in await make_caller().ask([context(), context()])] == [RecoveryKind.DEFAULT] * 2


async def test_the_first_answer_that_is_not_default_wins() -> None:
    (answered,) = await make_caller(return_none, return_default, back_off, skip).ask([context()])
    assert answered.answer.kind is RecoveryKind.FAIL_WITH_BACKOFF


async def test_answers_keep_the_order_of_the_tasks() -> None:
    def slower_for_earlier_tasks(each: RecoveryContext) -> Recovery:
        time.sleep(0.001 * (30 - int(each.task.task_id)))
        return Recovery.reschedule(NOW, attempts=int(each.task.task_id))

    answers = await make_caller(slower_for_earlier_tasks).ask([context(number) for number in range(30)])
    assert [each.answer.attempts for each in answers] == list(range(30))


class Unprintable(Exception):
    """Its `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError


def raise_an_error(_: RecoveryContext) -> None:
    raise LookupError("the table is gone\x00")


def raise_unprintable(_: RecoveryContext) -> None:
    raise Unprintable


def exit_process(_: RecoveryContext) -> None:
    sys.exit(3)


async def raise_interrupt(_: RecoveryContext) -> None:
    raise KeyboardInterrupt


async def raise_timeout(_: RecoveryContext) -> None:
    raise TimeoutError("own timeout")


def return_str(_: RecoveryContext) -> str:
    return "skip"


def reschedule_naive(_: RecoveryContext) -> Recovery:
    return Recovery.reschedule(NOW.replace(tzinfo=None))


def reschedule_with_float(_: RecoveryContext) -> Recovery:
    return Recovery.reschedule(NOW, attempts=1.5)  # pyright: ignore[reportArgumentType]


def return_modified_answer(_: RecoveryContext) -> Recovery:
    answer = Recovery.reschedule(NOW, attempts=1)
    object.__setattr__(answer, "attempts", True)
    return answer


def return_empty_answer(_: RecoveryContext) -> Recovery:
    return object.__new__(Recovery)


async def reschedule_at_max(_: RecoveryContext) -> Recovery:
    return Recovery.reschedule(datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (raise_an_error, "LookupError: the table is gone\ufffd"),
        (raise_unprintable, "Unprintable: "),
        (exit_process, "SystemExit: 3"),
        (raise_interrupt, "KeyboardInterrupt: "),
        (raise_timeout, "TimeoutError: own timeout"),
        (return_str, "returned str instead of a Recovery"),
        (reschedule_with_float, "attempts must be a whole number, 0 or more, got 1.5"),
        (return_modified_answer, "attempts must be a whole number, 0 or more, got True"),
        (return_empty_answer, "create a Recovery with default()"),
        (reschedule_at_max, "run_at must be within the years"),
        (reschedule_naive, "ValueError: run_at must have a time zone"),
    ],
)
async def test_failed_hook_counts_as_default_and_is_reported(hook: Callable[..., Any], error: str) -> None:
    failures: list[HookFailure] = []
    first, second = await make_caller(hook, failures=failures).ask([context(1), context(2)])
    assert first.answer.kind is second.answer.kind is RecoveryKind.DEFAULT
    (failure,) = failures
    assert failure.hook == f"{__name__}.{hook.__qualname__}"
    assert error in failure.error
    assert failure.task_id in {"1", "2"}


async def test_next_hook_is_called_after_a_failed_one() -> None:
    failures: list[HookFailure] = []
    (answered,) = await make_caller(raise_an_error, skip, failures=failures).ask([context()])
    assert answered.answer.kind is RecoveryKind.SKIP
    assert len(failures) == 1


async def test_blocking_hook_times_out_without_blocking_the_loop(release: threading.Event) -> None:
    def block(_: RecoveryContext) -> None:
        release.wait(60)

    began = time.monotonic()
    failures: list[HookFailure] = []
    await make_caller(block, limit_s=0.05, failures=failures).ask([context()])
    assert [failure.error for failure in failures] == ["no answer within 0.05 s"]
    assert time.monotonic() - began < 2


async def test_blocking_coroutine_does_not_block_the_sweep(release: threading.Event) -> None:
    async def block(_: RecoveryContext) -> None:
        release.wait(60)

    answering = asyncio.create_task(make_caller(block, limit_s=0.2).ask([context()]))
    ticks = 0
    while not answering.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 5
    assert answering.result()[0].answer.kind is RecoveryKind.DEFAULT


async def test_blocking_coroutine_does_not_affect_other_hooks(release: threading.Event) -> None:
    async def block(_: RecoveryContext) -> None:
        release.wait(60)

    (answered,) = await make_caller(block, skip_async, limit_s=0.2).ask([context()])
    assert (answered.answer.kind, answered.hook) == (RecoveryKind.SKIP, f"{__name__}.skip_async")
    (other_app,) = await make_caller(skip_async, limit_s=0.2).ask([context()])
    assert other_app.answer.kind is RecoveryKind.SKIP


async def test_hook_always_runs_on_the_same_loop() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    async def remember(_: RecoveryContext) -> None:
        loops.add(asyncio.get_running_loop())

    registered = RecoveryHooks()
    registered.recovery.add(remember)
    for _ in range(2):
        await HookCaller(registered).ask([context(), context()])
    assert len(loops) == 1


async def test_coroutine_that_ignores_cancellation_is_abandoned() -> None:
    has_ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def stay(_: RecoveryContext) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            loop.call_soon_threadsafe(has_ended.set)

    (answered,) = await make_caller(stay, limit_s=0.05).ask([context()])
    assert not has_ended.is_set()
    assert answered.answer.kind is RecoveryKind.DEFAULT
    await has_ended.wait()


async def test_hook_is_suspended_after_repeated_timeouts(release: threading.Event) -> None:
    asked: list[str] = []

    def block(each: RecoveryContext) -> None:
        asked.append(each.task.task_id)
        release.wait(60)

    failures: list[HookFailure] = []
    hooks = make_caller(block, limit_s=0.05, failures=failures)
    answers = await hooks.ask([context(number) for number in range(3 * MAX_LATE_CALLS)])
    assert len(asked) <= MAX_LATE_CALLS
    assert all(each.answer.kind is RecoveryKind.DEFAULT for each in answers)
    assert failures
    await hooks.ask([context()])
    assert len(asked) <= MAX_LATE_CALLS, "not called while earlier calls are pending"


async def test_failure_is_reported_once_per_batch() -> None:
    failures: list[HookFailure] = []
    hooks = make_caller(raise_an_error, failures=failures)
    await hooks.ask([context(number) for number in range(100)])
    assert len(failures) == 1
    await hooks.ask([context()])
    assert len(failures) == 2


async def test_interrupted_and_workers_recovered_hooks_are_called() -> None:
    calls: list[object] = []

    def record(each: RecoveryContext) -> None:
        calls.append(each.task.task_id)

    registered = RecoveryHooks()
    registered.interrupted.add(raise_an_error)
    registered.interrupted.add(record)
    registered.workers_recovered.add(calls.append)
    failures: list[HookFailure] = []
    hooks = HookCaller(registered, on_failure=failures.append)
    await hooks.notify_interrupted([context(1), context(2)])
    assert sorted(map(str, calls)) == ["1", "2"]
    recovered = RecoveredWorkers(worker_ids=("w",), recovered_count=2, recovering_worker_id=None)
    await hooks.notify_workers_recovered(recovered)
    assert calls[-1] is recovered
    assert [each.hook for each in failures] == [f"{__name__}.raise_an_error"]


def test_endless_hook_does_not_keep_the_process_alive() -> None:
    code = f"""
import asyncio, sys, time
sys.path[:] = {sys.path!r}
from tests.unit.recovery.test_hooks import make_caller, context
print(len(asyncio.run(make_caller(lambda _: time.sleep(600), limit_s=0.05).ask([context()]))), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("1\n", "")
