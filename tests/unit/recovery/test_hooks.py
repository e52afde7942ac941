"""Recovery hooks are user code: whatever they do, whoever asks goes on."""

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

from horsies.model.recovery.decision import RecoveredWorkers, Recovery, RecoveryContext, RecoveryKind, RecoveryReason
from horsies.model.task import TaskInfo, TaskStatus
from horsies.recovery.hooks import MAX_LATE_CALLS, HookCaller, HookFailure, RecoveryHooks

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


def asking(*hooks: Callable[..., Any], limit_s: float = 5.0, failures: list[HookFailure] | None = None) -> HookCaller:
    registered = RecoveryHooks()
    for hook in hooks:
        registered.recovery.add(hook)
    return HookCaller(registered, on_failure=(failures if failures is not None else []).append, limit_s=limit_s)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets hooks that block go on, at the latest when the test has ended."""
    event = threading.Event()
    yield event
    event.set()


def skip(_: RecoveryContext) -> Recovery:
    return Recovery.skip()


async def skip_async(_: RecoveryContext) -> Recovery:
    return Recovery.skip()


def say_default(_: RecoveryContext) -> Recovery:
    return Recovery.default()


def back_off(_: RecoveryContext) -> Recovery:
    return Recovery.fail_with_backoff()


def say_nothing(_: RecoveryContext) -> None:
    return None


@pytest.mark.parametrize("hook", [skip, skip_async])
async def test_a_hook_answers_plain_or_async(hook: Callable[..., Any]) -> None:
    (answered,) = await asking(hook).ask([context()])
    assert (answered.answer.kind, answered.hook, answered.failure) == (
        RecoveryKind.SKIP,
        f"{__name__}.{hook.__name__}",
        None,
    )


async def test_without_hooks_every_answer_is_the_default() -> None:
    assert [each.answer.kind for each in await asking().ask([context(), context()])] == [RecoveryKind.DEFAULT] * 2


async def test_the_first_answer_that_is_not_default_wins() -> None:
    (answered,) = await asking(say_nothing, say_default, back_off, skip).ask([context()])
    assert answered.answer.kind is RecoveryKind.FAIL_WITH_BACKOFF


async def test_answers_come_in_the_order_of_the_tasks() -> None:
    def later_for_earlier_ones(each: RecoveryContext) -> Recovery:
        time.sleep(0.001 * (30 - int(each.task.task_id)))
        return Recovery.reschedule(NOW, attempts=int(each.task.task_id))

    answers = await asking(later_for_earlier_ones).ask([context(number) for number in range(30)])
    assert [each.answer.attempts for each in answers] == list(range(30))


class Untellable(Exception):
    """Even its text is a trap."""

    def __str__(self) -> str:
        raise RuntimeError


def raise_an_error(_: RecoveryContext) -> None:
    raise LookupError("the table is gone\x00")


def raise_untellably(_: RecoveryContext) -> None:
    raise Untellable


def leave(_: RecoveryContext) -> None:
    sys.exit(3)


async def leave_async(_: RecoveryContext) -> None:
    raise KeyboardInterrupt


async def time_out_by_itself(_: RecoveryContext) -> None:
    raise TimeoutError("their own")


def answer_nonsense(_: RecoveryContext) -> str:
    return "skip"


def reschedule_nowhere(_: RecoveryContext) -> Recovery:
    return Recovery.reschedule(NOW.replace(tzinfo=None))


def reschedule_by_half(_: RecoveryContext) -> Recovery:
    return Recovery.reschedule(NOW, attempts=1.5)  # pyright: ignore[reportArgumentType]


def answer_past_the_checks(_: RecoveryContext) -> Recovery:
    answer = Recovery.reschedule(NOW, attempts=1)
    object.__setattr__(answer, "attempts", True)
    return answer


def answer_with_nothing_inside(_: RecoveryContext) -> Recovery:
    return object.__new__(Recovery)


async def reschedule_at_the_end_of_time(_: RecoveryContext) -> Recovery:
    return Recovery.reschedule(datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (raise_an_error, "LookupError: the table is gone\ufffd"),
        (raise_untellably, "Untellable: "),
        (leave, "SystemExit: 3"),
        (leave_async, "KeyboardInterrupt: "),
        (time_out_by_itself, "TimeoutError: their own"),
        (answer_nonsense, "returned str instead of a Recovery"),
        (reschedule_by_half, "attempts must be a whole number, 0 or more, got 1.5"),
        (answer_past_the_checks, "attempts must be a whole number, 0 or more, got True"),
        (answer_with_nothing_inside, "create a Recovery with default()"),
        (reschedule_at_the_end_of_time, "run_at must be within the years"),
        (reschedule_nowhere, "ValueError: run_at must have a time zone"),
    ],
)
async def test_a_hook_that_fails_counts_as_default_and_is_told(hook: Callable[..., Any], says: str) -> None:
    failures: list[HookFailure] = []
    first, second = await asking(hook, failures=failures).ask([context(1), context(2)])
    assert first.answer.kind is second.answer.kind is RecoveryKind.DEFAULT
    assert first.failure is not None
    (failure,) = failures
    assert failure.hook in first.failure
    assert says in failure.error
    assert failure.task_id in {"1", "2"}


async def test_the_hook_after_one_that_failed_is_asked() -> None:
    (answered,) = await asking(raise_an_error, skip).ask([context()])
    assert answered.answer.kind is RecoveryKind.SKIP
    assert answered.failure is not None


async def test_a_hook_that_blocks_is_given_up_and_never_holds_up_the_loop(release: threading.Event) -> None:
    def block(_: RecoveryContext) -> None:
        release.wait(60)

    began = time.monotonic()
    (answered,) = await asking(block, limit_s=0.05).ask([context()])
    assert answered.failure is not None
    assert "no answer within 0.05 s" in answered.failure
    assert time.monotonic() - began < 2


async def test_a_coroutine_that_blocks_its_loop_blocks_no_other(release: threading.Event) -> None:
    async def block(_: RecoveryContext) -> None:
        release.wait(60)

    answering = asyncio.create_task(asking(block, limit_s=0.2).ask([context()]))
    ticks = 0
    while not answering.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 5
    assert answering.result()[0].answer.kind is RecoveryKind.DEFAULT


async def test_a_coroutine_that_blocks_takes_no_answer_but_its_own(release: threading.Event) -> None:
    async def block(_: RecoveryContext) -> None:
        release.wait(60)

    (answered,) = await asking(block, skip_async, limit_s=0.2).ask([context()])
    assert (answered.answer.kind, answered.hook) == (RecoveryKind.SKIP, f"{__name__}.skip_async")
    (of_another_app,) = await asking(skip_async, limit_s=0.2).ask([context()])
    assert of_another_app.answer.kind is RecoveryKind.SKIP


async def test_what_a_hook_has_connected_stays_on_its_loop() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    async def remember(_: RecoveryContext) -> None:
        loops.add(asyncio.get_running_loop())

    registered = RecoveryHooks()
    registered.recovery.add(remember)
    for _ in range(2):
        await HookCaller(registered).ask([context(), context()])
    assert len(loops) == 1


async def test_a_coroutine_that_will_not_be_cancelled_is_left_behind() -> None:
    has_ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def stay(_: RecoveryContext) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            loop.call_soon_threadsafe(has_ended.set)

    (answered,) = await asking(stay, limit_s=0.05).ask([context()])
    assert not has_ended.is_set()
    assert answered.answer.kind is RecoveryKind.DEFAULT
    await has_ended.wait()


async def test_a_hook_that_is_late_for_everything_is_not_asked_for_ever(release: threading.Event) -> None:
    asked: list[str] = []

    def block(each: RecoveryContext) -> None:
        asked.append(each.task.task_id)
        release.wait(60)

    hooks = asking(block, limit_s=0.05)
    answers = await hooks.ask([context(number) for number in range(3 * MAX_LATE_CALLS)])
    assert len(asked) <= MAX_LATE_CALLS
    assert all(each.failure for each in answers)
    await hooks.ask([context()])
    assert len(asked) <= MAX_LATE_CALLS, "while those calls are out it is left alone"


async def test_a_failure_is_told_once_a_batch() -> None:
    failures: list[HookFailure] = []
    hooks = asking(raise_an_error, failures=failures)
    await hooks.ask([context(number) for number in range(100)])
    assert len(failures) == 1
    await hooks.ask([context()])
    assert len(failures) == 2


async def test_who_listens_is_told_of_interruptions_and_of_workers() -> None:
    told: list[object] = []

    def note(each: RecoveryContext) -> None:
        told.append(each.task.task_id)

    registered = RecoveryHooks()
    registered.interrupted.add(raise_an_error)
    registered.interrupted.add(note)
    registered.workers_recovered.add(told.append)
    failures: list[HookFailure] = []
    hooks = HookCaller(registered, on_failure=failures.append)
    await hooks.notify_interrupted([context(1), context(2)])
    assert sorted(map(str, told)) == ["1", "2"]
    recovered = RecoveredWorkers(worker_ids=("w",), recovered_count=2, recovering_worker_id=None)
    await hooks.notify_workers_recovered(recovered)
    assert told[-1] is recovered
    assert [each.hook for each in failures] == [f"{__name__}.raise_an_error"]


def test_a_hook_that_never_ends_does_not_keep_a_process_alive() -> None:
    code = f"""
import asyncio, sys, time
sys.path[:] = {sys.path!r}
from tests.unit.recovery.test_hooks import asking, context
print(len(asyncio.run(asking(lambda _: time.sleep(600), limit_s=0.05).ask([context()]))), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("1\n", "")
