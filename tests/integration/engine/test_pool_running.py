"""Tasks in real processes: what is handed over comes back, with the code it deserves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from horsies.model.task import TaskAttemptOutcome
from tests.support.pool import PoolHarness, assignment, running_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILED, WORKER_FAILURE = TaskAttemptOutcome.FAILED, TaskAttemptOutcome.WORKER_FAILURE


@pytest_asyncio.fixture(loop_scope="module")
async def pool() -> AsyncIterator[PoolHarness]:
    async with running_pool() as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def survivor() -> AsyncIterator[PoolHarness]:
    """A pool whose one child must outlive everything that is done to it, one test after the other."""
    async with running_pool() as pool:
        yield pool


async def test_every_task_handed_over_ends_once(pool: PoolHarness) -> None:
    given = [assignment("noop") for _ in range(500)]
    for start in range(0, 500, 50):
        pool.child.run(given[start : start + 50])
    await pool.events.until(lambda: len(pool.events.outcomes) == 500)
    assert pool.events.begun == [each.key for each in given]
    assert {ending.outcome for ending in pool.events.outcomes.values()} == {TaskAttemptOutcome.COMPLETED}
    assert pool.child.is_idle


async def test_arguments_and_results_larger_than_any_buffer_pass_both_ways(survivor: PoolHarness) -> None:
    text = "x" * (8 << 20)
    assert await survivor.value(survivor.give("echo", text)) == text


async def test_a_chunk_of_large_arguments_passes(pool: PoolHarness) -> None:
    given = [assignment("echo", "x" * (2 << 20)) for _ in range(8)]
    pool.child.run(given)
    await pool.events.until(lambda: len(pool.events.outcomes) == 8)
    assert all(len(ending.document) > 2 << 20 for ending in pool.events.outcomes.values())


async def test_a_task_knows_its_own_attempt(survivor: PoolHarness) -> None:
    given = assignment("describe_self", attempt=3, possible_overlap=True, flags=b'{"careful":true}')
    survivor.child.run([given])
    assert await survivor.value(given.key) == "describe_self 3 True {'careful': True}"


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
    ],
)
async def test_each_failure_has_its_code_and_leaves_the_child_alive(
    survivor: PoolHarness, task_name: str, args: list[object], outcome: TaskAttemptOutcome, code: str
) -> None:
    ending = await survivor.run(task_name, *args)
    assert (ending.outcome, ending.error_code) == (outcome, code)
    assert json.loads(ending.document)["err"]["error_code"] == code
    assert await survivor.value(survivor.give("pid")) == survivor.events.ready_pids[0]


@pytest.mark.parametrize("kind", ["", "_async"])
async def test_what_a_check_of_the_result_raises_counts_as_raised_by_the_task(survivor: PoolHarness, kind: str) -> None:
    for fate in ("exit", "interrupt", "cancel", "generator"):
        ending = await survivor.run(f"raise_on_validation{kind}", fate)
        assert (ending.outcome, ending.error_code) == (FAILED, "UNHANDLED_EXCEPTION"), fate
    ending = await survivor.run(f"raise_on_validation{kind}", "recursion")
    assert (ending.outcome, ending.error_code) == (FAILED, "RETURN_TYPE_MISMATCH"), "as of any error in a validator"
    assert await survivor.value(survivor.give("pid")) == survivor.events.ready_pids[0]


@pytest.mark.parametrize("kind", ["", "_async"])
async def test_what_a_serializer_of_the_result_raises_leaves_it_without_a_form(
    survivor: PoolHarness, kind: str
) -> None:
    for fate in ("exit", "interrupt", "cancel", "generator", "recursion", "memory"):
        ending = await survivor.run(f"raise_on_dump{kind}", fate)
        assert (ending.outcome, ending.error_code) == (WORKER_FAILURE, "WORKER_SERIALIZATION_ERROR"), fate
    assert await survivor.value(survivor.give("pid")) == survivor.events.ready_pids[0]


async def test_what_has_not_begun_can_be_recalled(pool: PoolHarness, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first, *rest = given = [assignment("wait_for", str(gate)), *(assignment("noop") for _ in range(63))]
    pool.child.run(given)
    await pool.begun(first.key)
    pool.child.recall()
    await pool.events.until(lambda: bool(pool.events.recalled))
    assert pool.events.recalled == [each.key for each in rest]
    gate.touch()
    await pool.wait_for_outcome(first.key)
    assert list(pool.events.outcomes) == [first.key]


async def test_lines_arrive_with_the_task_that_wrote_them(pool: PoolHarness) -> None:
    key = pool.give("print_lines")
    await pool.wait_for_outcome(key)
    await pool.events.until(lambda: len(pool.events.lines) == 4)
    said = pool.events.lines
    assert [line for line in said if line[0] == key] == [
        (key, "stdout", "first"),
        (key, "stderr", "oh"),
        (key, "stdout", "second"),
    ]
    assert (None, "stdout", "from C") in said


async def test_a_fork_of_a_child_is_heard_on_its_pipe_and_not_on_its_line(pool: PoolHarness) -> None:
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
async def test_a_fork_that_comes_back_from_its_task_ends_there(
    survivor: PoolHarness, tmp_path: Path, task_name: str, way: str, status: int
) -> None:
    file = tmp_path / "lines"
    forking, *others = given = [
        assignment(task_name, way),
        assignment("append_line_async", str(file)),
        assignment("append_line", str(file)),
    ]
    survivor.child.run(given)
    assert await survivor.value(forking.key) == status
    for each in others:
        await survivor.wait_for_outcome(each.key)
    assert file.read_text() == "here\n" * 2, "a copy has run what its child was handed"


@pytest.mark.parametrize("kind", ["", "_async"])
@pytest.mark.parametrize("way", ["fork", "process", "pool"])
async def test_a_process_forked_by_a_thread_of_a_task_has_no_line_to_the_worker(
    pool: PoolHarness, way: str, kind: str
) -> None:
    assert await pool.value(pool.give(f"fork_in_thread{kind}", way)) == 0
    await pool.events.until(lambda: len(pool.events.lines) == 2)
    assert sorted(pool.events.lines, key=str) == [(None, "stderr", "logged there"), (None, "stdout", "from the copy")]
    assert await pool.value(pool.give("pid")) == pool.events.ready_pids[0]


async def test_coroutines_of_one_child_run_at_the_same_time(survivor: PoolHarness) -> None:
    one, other = assignment("meet", "one", "other"), assignment("meet", "other", "one")
    survivor.child.run([one, other])
    assert [await survivor.value(one.key), await survivor.value(other.key)] == ["one", "other"]


async def test_coroutines_beyond_the_limit_wait_their_turn() -> None:
    async with running_pool(async_concurrency=2) as pool:
        given = [assignment("nap", 60) for _ in range(3)]
        pool.child.run(given)
        await pool.begun(given[0].key, given[1].key)
        assert pool.child.unbegun == (given[2].key,)
        pool.child.cancel(given[0].key)
        await pool.begun(given[2].key)


async def test_functions_and_coroutines_take_turns_in_order(pool: PoolHarness) -> None:
    given = [assignment(name, *args) for name, args in [("pid", ()), ("nap", (0.01,)), ("pid", ()), ("nap", (0.01,))]]
    pool.child.run(given)
    await pool.events.until(lambda: len(pool.events.outcomes) == 4)
    assert list(pool.events.outcomes) == [each.key for each in given]


async def test_a_cancelled_coroutine_ends_and_its_neighbour_does_not(pool: PoolHarness) -> None:
    one, other = assignment("nap", 60), assignment("nap", 60)
    pool.child.run([one, other])
    await pool.begun(one.key, other.key)
    pool.child.cancel(one.key)
    assert (await pool.wait_for_outcome(one.key)).error_code == "TASK_CANCELLED"
    assert pool.child.begun == (other.key,)


async def test_what_has_not_begun_is_given_back_when_it_is_cancelled(pool: PoolHarness, tmp_path: Path) -> None:
    busy, waiting = assignment("wait_for", str(tmp_path / "never")), assignment("noop")
    pool.child.run([busy, waiting])
    await pool.begun(busy.key)
    pool.child.cancel(waiting.key)
    await pool.events.until(lambda: bool(pool.events.recalled))
    assert pool.events.recalled == [waiting.key]
    assert pool.events.begun == [busy.key]


async def test_an_exit_in_a_task_made_by_a_coroutine_ends_neither_the_loop_nor_the_child(survivor: PoolHarness) -> None:
    assert await survivor.value(survivor.give("exit_in_subtask")) == "still here"
    assert await survivor.value(survivor.give("nap", 0)) == survivor.events.ready_pids[0]


async def test_an_ending_says_how_long_the_task_took_by_the_clock_of_its_child() -> None:
    async with running_pool() as pool:
        ending = await pool.run("noop")
    assert ending.run_ms is not None
    assert 0 < ending.run_ms < 1000
