"""Running tasks in real child processes: outcomes, output, forks, cancellation and recalls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from horsies.engine.child.runner import MAX_TRACEBACKS
from horsies.model.task import TaskAttemptOutcome
from tests.support.pool import PoolHarness, assignment, key_of, keys_of, running_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILED, WORKER_FAILURE = TaskAttemptOutcome.FAILED, TaskAttemptOutcome.WORKER_FAILURE


@pytest_asyncio.fixture(loop_scope="module")
async def pool() -> AsyncIterator[PoolHarness]:
    async with running_pool() as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def survivor() -> AsyncIterator[PoolHarness]:
    """A pool shared by several tests; its only child must survive all of them."""
    async with running_pool() as pool:
        yield pool


async def test_every_assigned_task_ends_once(pool: PoolHarness) -> None:
    assigned = [assignment("noop") for _ in range(500)]
    for start in range(0, 500, 50):
        pool.send(assigned[start : start + 50])
    await pool.events.until(lambda: len(pool.events.outcomes) == 500)
    assert pool.events.begun == [key_of(task) for task in assigned]
    assert {ending.outcome for ending in pool.events.outcomes.values()} == {TaskAttemptOutcome.COMPLETED}
    assert pool.child.is_idle


async def test_large_arguments_and_results_pass_both_ways(survivor: PoolHarness) -> None:
    text = "x" * (8 << 20)
    assert await survivor.value(survivor.give("echo", text)) == text


async def test_chunk_with_large_arguments_passes(pool: PoolHarness) -> None:
    assigned = [assignment("echo", "x" * (2 << 20)) for _ in range(8)]
    pool.send(assigned)
    await pool.events.until(lambda: len(pool.events.outcomes) == 8)
    assert all(len(ending.document) > 2 << 20 for ending in pool.events.outcomes.values())


async def test_task_knows_its_attempt(survivor: PoolHarness) -> None:
    assigned = assignment("describe_self", attempts=2, overlap_possible=True, flags={"careful": True})
    survivor.send([assigned])
    assert await survivor.value(key_of(assigned)) == "describe_self 3 True {'careful': True}"


@pytest.mark.parametrize(
    ("task_name", "args", "outcome", "code"),
    [
        ("unheard_of", [], WORKER_FAILURE, "WORKER_RESOLUTION_ERROR"),
        ("echo", [{"no": "text"}], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("unencodable", [], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("fail_to_decode", [{"word": "in"}], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("fail_to_decode_async", [{"word": "in"}], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("fail_to_encode", [], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("fail_to_encode_async", [], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("huge", [65], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("return_wrong_type", [], FAILED, "RETURN_TYPE_MISMATCH"),
        ("exit", [], FAILED, "UNHANDLED_EXCEPTION"),
        ("interrupt", [], FAILED, "UNHANDLED_EXCEPTION"),
        ("recurse", [0], FAILED, "UNHANDLED_EXCEPTION"),
        ("eat_memory_mapped", [], FAILED, "TOO_MUCH"),
        ("raise_on_str", [], FAILED, "UNHANDLED_EXCEPTION"),
        ("raise_long_message", [15], FAILED, "UNHANDLED_EXCEPTION"),
        ("return_long_message", [40], FAILED, "LONG"),
        ("return_long_code", [40], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
        ("decode_long_message", [{"megabytes": 70}], WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"),
    ],
)
async def test_each_failure_has_its_code_and_spares_the_child(
    survivor: PoolHarness, task_name: str, args: list[object], outcome: TaskAttemptOutcome, code: str
) -> None:
    ending = await survivor.run(task_name, *args)
    assert (ending.outcome, ending.error_code) == (outcome, code)
    assert json.loads(ending.document)["err"]["error_code"] == code
    assert await survivor.value(survivor.give("pid")) == survivor.events.ready_pids[0]


@pytest.mark.parametrize("kind", ["", "_async"])
async def test_exceptions_of_result_validators_count_as_task_failures(survivor: PoolHarness, kind: str) -> None:
    for error in ("exit", "interrupt", "cancel", "generator"):
        ending = await survivor.run(f"raise_on_validation{kind}", error)
        assert (ending.outcome, ending.error_code) == (FAILED, "UNHANDLED_EXCEPTION"), error
    ending = await survivor.run(f"raise_on_validation{kind}", "recursion")
    assert (ending.outcome, ending.error_code) == (FAILED, "RETURN_TYPE_MISMATCH"), "like any error in a validator"
    assert await survivor.value(survivor.give("pid")) == survivor.events.ready_pids[0]


@pytest.mark.parametrize("kind", ["", "_async"])
async def test_exceptions_of_result_serializers_are_worker_failures(survivor: PoolHarness, kind: str) -> None:
    for error in ("exit", "interrupt", "cancel", "generator", "recursion", "memory"):
        ending = await survivor.run(f"raise_on_dump{kind}", error)
        assert (ending.outcome, ending.error_code) == (WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"), error
    assert await survivor.value(survivor.give("pid")) == survivor.events.ready_pids[0]


async def test_unbegun_tasks_can_be_recalled(pool: PoolHarness, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first, *rest = assigned = [assignment("wait_for", str(gate)), *(assignment("noop") for _ in range(63))]
    pool.send(assigned)
    await pool.begun(key_of(first))
    pool.child.recall()
    await pool.events.until(lambda: bool(pool.events.recalled))
    assert pool.events.recalled == [key_of(task) for task in rest]
    gate.touch()
    await pool.wait_for_outcome(key_of(first))
    assert list(pool.events.outcomes) == [key_of(first)]


async def test_output_lines_carry_the_task_that_printed_them(pool: PoolHarness) -> None:
    key = pool.give("print_lines")
    await pool.wait_for_outcome(key)
    await pool.events.until(lambda: len(pool.events.lines) == 4)
    lines = pool.events.lines
    assert [line for line in lines if line[0] == key.task_id] == [
        (key.task_id, "stdout", "first"),
        (key.task_id, "stderr", "oh"),
        (key.task_id, "stdout", "second"),
    ]
    assert (None, "stdout", "from C") in lines


async def test_output_of_a_fork_arrives_by_pipe(pool: PoolHarness) -> None:
    assert await pool.value(pool.give("fork")) == 0
    await pool.events.until(lambda: bool(pool.events.lines))
    assert pool.events.lines == [(None, "stdout", "from the fork")]


@pytest.mark.parametrize(
    ("task_name", "way", "status"),
    [
        ("fork_out", "exit", 3),
        ("fork_out", "raise", 1),
        ("fork_out", "return", 0),
        ("fork_out_async", "exit", 3),
        ("fork_out_async", "raise", 1),
        ("fork_out_async", "return", 0),
        ("fork_out_async", "wait", 1),
        ("fork_out_in_subtask", "exit", 3),
    ],
)
async def test_fork_that_returns_from_its_task_exits(
    survivor: PoolHarness, tmp_path: Path, task_name: str, way: str, status: int
) -> None:
    file = tmp_path / "lines"
    forking, *others = assigned = [
        assignment(task_name, way),
        assignment("append_line_async", str(file)),
        assignment("append_line", str(file)),
    ]
    survivor.send(assigned)
    assert await survivor.value(key_of(forking)) == status
    for other in others:
        await survivor.wait_for_outcome(key_of(other))
    assert file.read_text() == "here\n" * 2, "the forked copy also ran the child's next tasks"


@pytest.mark.parametrize("kind", ["", "_async"])
@pytest.mark.parametrize("way", ["fork", "process", "pool"])
async def test_process_forked_by_a_thread_has_no_channel(pool: PoolHarness, way: str, kind: str) -> None:
    assert await pool.value(pool.give(f"fork_in_thread{kind}", way)) == 0
    await pool.events.until(lambda: len(pool.events.lines) == 2)
    assert sorted(pool.events.lines, key=str) == [(None, "stderr", "logged there"), (None, "stdout", "from the copy")]
    assert await pool.value(pool.give("pid")) == pool.events.ready_pids[0]


async def test_coroutines_of_one_child_run_concurrently(survivor: PoolHarness) -> None:
    one, other = assignment("meet", "one", "other"), assignment("meet", "other", "one")
    survivor.send([one, other])
    assert [await survivor.value(key_of(one)), await survivor.value(key_of(other))] == ["one", "other"]


async def test_coroutines_beyond_the_limit_wait() -> None:
    async with running_pool(async_concurrency=2) as pool:
        assigned = [assignment("nap", 60) for _ in range(3)]
        chunk = pool.send(assigned)
        await pool.begun(key_of(assigned[0]), key_of(assigned[1]))
        assert keys_of(pool.child.unbegun) == (key_of(assigned[2]),)
        pool.child.cancel(chunk, 0)
        await pool.begun(key_of(assigned[2]))


async def test_functions_and_coroutines_run_in_order(pool: PoolHarness) -> None:
    assigned = [
        assignment(name, *args) for name, args in [("pid", ()), ("nap", (0.01,)), ("pid", ()), ("nap", (0.01,))]
    ]
    pool.send(assigned)
    await pool.events.until(lambda: len(pool.events.outcomes) == 4)
    assert list(pool.events.outcomes) == [key_of(task) for task in assigned]


async def test_cancelled_coroutine_ends_alone(pool: PoolHarness) -> None:
    one, other = assignment("nap", 60), assignment("nap", 60)
    chunk = pool.send([one, other])
    await pool.begun(key_of(one), key_of(other))
    pool.child.cancel(chunk, 0)
    assert (await pool.wait_for_outcome(key_of(one))).error_code == "TASK_CANCELLED"
    assert keys_of(pool.child.begun) == (key_of(other),)


async def test_cancelled_unbegun_task_is_recalled(pool: PoolHarness, tmp_path: Path) -> None:
    busy, waiting = assignment("wait_for", str(tmp_path / "never")), assignment("noop")
    chunk = pool.send([busy, waiting])
    await pool.begun(key_of(busy))
    pool.child.cancel(chunk, 1)
    await pool.events.until(lambda: bool(pool.events.recalled))
    assert pool.events.recalled == [key_of(waiting)]
    assert pool.events.begun == [key_of(busy)]


async def test_exit_in_an_asyncio_task_spares_loop_and_child(survivor: PoolHarness) -> None:
    assert await survivor.value(survivor.give("exit_in_subtask")) == "still here"
    assert await survivor.value(survivor.give("nap", 0)) == survivor.events.ready_pids[0]


async def test_child_reports_the_run_time() -> None:
    async with running_pool() as pool:
        await pool.run("noop")
    assert [0 < run_ms < 1000 for run_ms in pool.events.run_times_ms] == [True]


async def test_large_log_record_spares_the_child(survivor: PoolHarness) -> None:
    key = survivor.give("log_much")
    await survivor.wait_for_outcome(key)
    assert (key.task_id, "stderr", "much") in survivor.events.lines
    assert await survivor.value(survivor.give("pid")) == survivor.events.ready_pids[0]


async def test_repeated_exceptions_are_logged_a_limited_number_of_times(pool: PoolHarness) -> None:
    pool.send([assignment("fail", f"order {number}") for number in range(100)])
    await pool.events.until(lambda: len(pool.events.outcomes) == 100)
    logged = [line for _, _, line in pool.events.lines]
    assert logged == [f"unhandled LookupError: order {number}" for number in range(MAX_TRACEBACKS)]
