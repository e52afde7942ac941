"""Outcomes of tasks in a complete worker; all tests share one worker with real children."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from horsies import Horsies, TaskError, TaskResult
from horsies.engine import events
from tests.support.databases import Cluster
from tests.support.ledger import Ledger
from tests.support.workers import InProcessWorker, send, worker_in_process

pytestmark = pytest.mark.asyncio(loop_scope="module")


CANCEL = """
UPDATE horsies_tasks
   SET status = 'CANCELLED', error_code = 'TASK_CANCELLED', kill_requested = true, terminal_at = now()
 WHERE id = $1::text::uuid
"""


@dataclass(frozen=True, slots=True)
class Scene:
    ledger: Ledger
    worker: InProcessWorker

    async def run(self, name: str, *args: object, **options: Any) -> dict[str, Any]:
        """Send a task and return its row once it is terminal."""
        task_id = await self.worker.send(name, *args, **options)
        return (await self.ledger.until_terminal(task_id))[task_id]

    async def attempts_of(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return await self.ledger.attempts(row["id"])


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with cluster.database(migrated=True) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(url: str) -> AsyncIterator[Scene]:
    config = {"unknown_task_grace_s": 0}
    async with Ledger.open(url) as ledger, worker_in_process(url, config=config, processes=2) as worker:
        yield Scene(ledger, worker)


async def test_task_runs_and_its_result_can_be_awaited(scene: Scene) -> None:
    task_id = await scene.worker.send("work")
    result = await scene.worker.app.get_result_async(task_id, timeout_ms=10_000)
    row = await scene.ledger.row(task_id)
    assert result.ok_value == row["worker_pid"]
    assert row["status"] == "COMPLETED"
    instants = [row[name] for name in ("sent_at", "enqueued_at", "claimed_at", "started_at", "completed_at")]
    assert instants == sorted(instants)
    assert await scene.ledger.violations([task_id]) == []


async def test_returned_error_is_stored_with_its_code(scene: Scene) -> None:
    row = await scene.run("return_error", "NOT_TODAY")
    result = await scene.worker.app.get_result_async(row["id"])
    assert result.err_value.error_code == "NOT_TODAY"
    assert result.err_value.data == {"asked": "NOT_TODAY"}
    assert (row["status"], row["error_code"]) == ("FAILED", "NOT_TODAY")
    (attempt,) = await scene.attempts_of(row)
    assert (attempt["outcome"], attempt["will_retry"], attempt["error_code"]) == ("FAILED", False, "NOT_TODAY")


@pytest.mark.parametrize(
    ("name", "arguments", "code", "outcome"),
    [
        ("raise_error", ("boo",), "UNHANDLED_EXCEPTION", "FAILED"),
        ("raise_error_async", ("boo",), "UNHANDLED_EXCEPTION", "FAILED"),
        ("raise_error_mapped", ("boo",), "BAD_VALUE", "FAILED"),
        ("raise_unmapped", (), "UNHANDLED_EXCEPTION", "FAILED"),
        ("exit_by_exception", (3,), "UNHANDLED_EXCEPTION", "FAILED"),
        ("interrupt", (), "UNHANDLED_EXCEPTION", "FAILED"),
        ("return_none", (), "TASK_EXCEPTION", "FAILED"),
        ("return_wrong_type", (), "RETURN_TYPE_MISMATCH", "FAILED"),
        ("unencodable", (), "WORKER_SERIALIZATION_ERROR", "WORKER_FAILURE"),
    ],
)
async def test_each_kind_of_failure_has_its_code(
    scene: Scene, name: str, arguments: tuple[object, ...], code: str, outcome: str
) -> None:
    before = [child.pid for child in scene.worker.children]
    row = await scene.run(name, *arguments)
    (attempt,) = await scene.attempts_of(row)
    assert (row["status"], row["error_code"], attempt["outcome"]) == ("FAILED", code, outcome)
    assert [child.pid for child in scene.worker.children] == before
    assert await scene.ledger.violations([row["id"]]) == []


async def test_functions_and_coroutines_complete_alike(scene: Scene) -> None:
    rows = [await scene.run(name, 0.0) for name in ("work", "nap")]
    assert [(row["status"], row["attempts"]) for row in rows] == [("COMPLETED", 1)] * 2


def _foreign_task(text: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text)


@pytest.mark.parametrize(
    ("name", "code"), [("unknown", "WORKER_RESOLUTION_ERROR"), ("work", "WORKER_SERIALIZATION_ERROR")]
)
async def test_task_of_another_app_fails_without_side_effects(scene: Scene, name: str, code: str) -> None:
    other = Horsies(scene.worker.app.config)
    other.task(name)(_foreign_task)
    task_id = await send(other, name, "not a number")
    row = (await scene.ledger.until_terminal(task_id))[task_id]
    (attempt,) = await scene.attempts_of(row)
    assert (row["error_code"], attempt["outcome"]) == (code, "WORKER_FAILURE")
    await other.close_async()


async def test_unknown_task_is_reported_once_with_a_hint(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    other = Horsies(scene.worker.app.config)
    other.task("foreign")(_foreign_task)
    with caplog.at_level("WARNING", logger="horsies.worker"):
        ids = [await send(other, "foreign", "text") for _ in range(2)]
        await scene.ledger.until_terminal(*ids)
    (unknown,) = [event for event in scene.worker.events_of(events.TaskUnknown) if event.task_name == "foreign"]
    assert unknown.app is not None
    (line,) = [line for line in caplog.messages if line.startswith("task unknown  task_name=foreign")]
    assert line.endswith("  hint=if it belongs to another project, give each project its own database or queue")
    await other.close_async()


async def test_task_with_damaged_arguments_fails(scene: Scene) -> None:
    task_id = await scene.worker.send("work", 0.0, delay=timedelta(hours=1))
    damage = "UPDATE horsies_tasks SET args = '[\"not a number\"]', enqueued_at = now() WHERE id = $1::text::uuid"
    await scene.ledger.fetch(damage, task_id)
    row = (await scene.ledger.until_terminal(task_id))[task_id]
    assert row["error_code"] == "WORKER_SERIALIZATION_ERROR"


async def test_each_retry_leaves_an_attempt(scene: Scene) -> None:
    row = await scene.run("return_error", "LISTED")
    attempts = await scene.attempts_of(row)
    assert (row["status"], row["error_code"], row["retry_count"]) == ("FAILED", "LISTED", 2)
    assert [(attempt["attempt"], attempt["will_retry"]) for attempt in attempts] == [(1, True), (2, True), (3, False)]
    assert all(gap >= timedelta(seconds=1) for gap in _gaps(attempts))
    assert await scene.ledger.violations([row["id"]]) == []


async def test_task_completes_after_retries_with_growing_delays(scene: Scene) -> None:
    row = await scene.run("fail_times", 2)
    first, second = _gaps(await scene.attempts_of(row))
    assert (row["status"], row["error_code"], row["retry_count"]) == ("COMPLETED", None, 2)
    # Jitter adds up to 25 %; one more second is allowed for a busy machine.
    assert timedelta(seconds=1) <= first < timedelta(seconds=2.25)
    assert timedelta(seconds=2) <= second < timedelta(seconds=3.5)


async def test_unlisted_error_code_is_not_retried(scene: Scene) -> None:
    row = await scene.run("return_error", "UNLISTED")
    assert (row["retry_count"], row["attempts"], row["max_retries"]) == (0, 1, 2)


async def test_no_retry_after_good_until(scene: Scene) -> None:
    row = await scene.run("return_error", "LISTED", good_until=datetime.now(UTC) + timedelta(seconds=0.9))
    assert (row["status"], row["error_code"], row["attempts"]) == ("FAILED", "LISTED", 1)


async def test_task_past_good_until_is_never_started(scene: Scene) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    late = await scene.worker.send("work", 0.0, good_until=soon, delay=timedelta(seconds=0.6))
    after = await scene.worker.send("work", 0.0, delay=timedelta(seconds=0.7))
    await scene.ledger.until_terminal(after)
    assert (await scene.ledger.row(late))["attempts"] == 0
    assert await scene.ledger.starts(late) == []


async def test_delayed_task_starts_on_time(scene: Scene) -> None:
    row = await scene.run("work", 0.0, delay=timedelta(seconds=0.5))
    assert row["enqueued_at"] >= row["sent_at"] + timedelta(seconds=0.5)
    assert row["enqueued_at"] <= row["started_at"] < row["enqueued_at"] + timedelta(seconds=1)


async def test_function_past_its_timeout_is_killed_alone(scene: Scene) -> None:
    other = await scene.worker.send("work", 1.8)
    await scene.ledger.until_started(other)
    row = await scene.run("work_briefly", 30.0)
    (attempt,) = await scene.attempts_of(row)
    assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "TASK_TIMEOUT", 0)
    assert attempt["outcome"] == "FAILED"
    assert row["failed_at"] - row["started_at"] < timedelta(seconds=2)
    assert (await scene.ledger.until_terminal(other))[other]["status"] == "COMPLETED"
    assert await scene.ledger.violations([row["id"], other]) == []


async def test_timeout_is_retried_if_listed(scene: Scene) -> None:
    row = await scene.run("work_briefly_again", 30.0)
    assert [attempt["error_code"] for attempt in await scene.attempts_of(row)] == ["TASK_TIMEOUT"] * 2
    assert await scene.ledger.violations([row["id"]]) == []


async def test_coroutine_past_its_timeout_is_cancelled_alone(scene: Scene) -> None:
    await scene.worker.until(lambda: len(scene.worker.children) == 2)
    before = [child.pid for child in scene.worker.children]
    others = [await scene.worker.send("nap", 1.5) for _ in range(4)]
    row = await scene.run("nap_briefly", 30.0)
    assert (row["error_code"], row["crash_count"]) == ("TASK_TIMEOUT", 0)
    rows = await scene.ledger.until_terminal(*others)
    assert {other["status"] for other in rows.values()} == {"COMPLETED"}
    assert [child.pid for child in scene.worker.children] == before
    assert await scene.ledger.violations([row["id"], *others]) == []


async def test_uncancellable_coroutine_interrupts_others_without_counting_a_crash(scene: Scene) -> None:
    scene.worker.assignments.other_tasks_grace_s = 0.2
    slow = [await scene.worker.send(name, 30.0) for name in ("nap", "nap_again", "nap", "nap_again")]
    await scene.ledger.until_started(*slow)
    row = await scene.run("ignore_cancel_briefly", 30.0)
    assert (row["error_code"], row["crash_count"]) == ("TASK_TIMEOUT", 0)
    pid = row["worker_pid"]
    interrupted = [start.task_id for start in await scene.ledger.starts(*slow) if start.pid == pid]

    async def are_stored() -> bool:
        return len(await scene.ledger.attempts(*interrupted)) >= len(interrupted)

    await scene.ledger.until(are_stored)
    assert interrupted
    assert {attempt["error_code"] for attempt in await scene.ledger.attempts(*interrupted)} == {"SHUTDOWN"}
    rows = await scene.ledger.rows(*interrupted)
    assert {other["crash_count"] for other in rows.values()} == {0}
    for task_id in slow:  # otherwise they run again and occupy the children in later tests
        await scene.ledger.fetch(CANCEL, task_id)
    await scene.worker.kill_children()
    await scene.worker.until(lambda: len(scene.worker.children) == 2)


@pytest.mark.parametrize("name", ["work", "nap"])
async def test_running_task_cancelled_with_kill_ends_immediately(scene: Scene, name: str) -> None:
    task_id = await scene.worker.send(name, 30.0)
    await scene.ledger.until_started(task_id)
    await scene.ledger.fetch(CANCEL, task_id)
    await scene.ledger.fetch("SELECT pg_notify('horsies_worker_ping', $1)", json.dumps({"kind": "kill"}))
    await scene.worker.until(lambda: not scene.worker.has_in_flight(task_id), within_s=2)
    await scene.worker.until(lambda: len(scene.worker.children) == 2)
    row = await scene.ledger.row(task_id)
    assert (row["status"], row["crash_count"], row["attempts"]) == ("CANCELLED", 0, 0)


async def test_kill_command_not_confirmed_by_the_row_is_ignored(scene: Scene) -> None:
    task_id = await scene.worker.send("work", 0.5)
    await scene.ledger.until_started(task_id)
    command = json.dumps({"kind": "kill", "task_ids": [task_id]})
    await scene.ledger.fetch("SELECT pg_notify('horsies_worker_ping', $1)", command)
    row = (await scene.ledger.until_terminal(task_id))[task_id]
    assert (row["status"], row["attempts"], row["claim_token"]) == ("COMPLETED", 1, 1)


async def test_task_output_is_logged_with_the_task_id(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="horsies.task"):
        row = await scene.run("print_lines", "good day")
    logged = {(record.levelname, record.getMessage(), record.__dict__["task_id"]) for record in caplog.records}
    assert {("INFO", "good day", row["id"]), ("WARNING", "GOOD DAY", row["id"])} <= logged


async def test_task_context_describes_the_task(scene: Scene) -> None:
    good_until = datetime.now(UTC) + timedelta(hours=1)
    row = await scene.run("describe_self", good_until=good_until)
    context = (await scene.worker.app.get_result_async(row["id"])).ok_value
    assert context == {
        "task_id": row["id"],
        "task_name": "describe_self",
        "queue_name": "default",
        "attempt": 1,
        "retry_count": 0,
        "claim_token": row["claim_token"],
        "sent_at": row["sent_at"].isoformat(),
        "good_until": good_until.isoformat(),
        "timeout_ms": 30_000,
        "worker_id": scene.worker.worker_id,
        "flags": ["vip"],
        "possible_overlap": False,
    }


async def test_many_short_tasks_each_run_once(scene: Scene) -> None:
    sent = await asyncio.gather(*(scene.worker.send("work", 0.0) for _ in range(100)))
    await scene.ledger.until_terminal(*sent)
    assert await scene.ledger.violations(sent) == []
    assert len(await scene.ledger.starts(*sent)) == 100


def _gaps(attempts: list[dict[str, Any]]) -> list[timedelta]:
    """The delays between the end of each attempt and the start of the next."""
    return [after["started_at"] - before["finished_at"] for before, after in pairwise(attempts)]
