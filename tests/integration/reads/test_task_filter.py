"""Each condition of a task filter, against one row that matches and one that does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from horsies.store.database import Database
from horsies_ops.reads.filters import TaskFilter
from tests.support.rows import NOW, insert, insert_task
from tests.support.store import ops_on

HOUR = timedelta(hours=1)
WORKER, RUN, TASK = uuid4(), uuid4(), uuid4()
RUNNING = {"status": "RUNNING", "claim_token": 1, "claimed_at": NOW, "started_at": NOW - HOUR}


@pytest.mark.parametrize(
    ("task_filter", "matching", "other"),
    [
        (TaskFilter(statuses=["FAILED", "EXPIRED"]), {"status": "EXPIRED"}, {"status": "COMPLETED"}),
        (TaskFilter(queues=["a", "b"]), {"queue_name": "b"}, {"queue_name": "c"}),
        (TaskFilter(names=["mail.*"]), {"task_name": "mail.send"}, {"task_name": "email.send"}),
        (TaskFilter(names=["a_?"]), {"task_name": "a_b"}, {"task_name": "axb"}),
        (TaskFilter(error_codes=["SMTP*"]), {"status": "FAILED", "error_code": "SMTP_DOWN"}, {"status": "FAILED"}),
        (TaskFilter(worker_id=str(WORKER)), {"claimed_by_worker_id": WORKER}, {"claimed_by_worker_id": uuid4()}),
        (TaskFilter(worker_id=str(WORKER)[-8:]), {"claimed_by_worker_id": WORKER}, {"claimed_by_worker_id": uuid4()}),
        (TaskFilter(workflow_id=str(RUN)), {"workflow_id": RUN}, {}),
        (TaskFilter(workflow_id=str(RUN)[-8:].upper()), {"workflow_id": RUN}, {}),
        (TaskFilter(ids=[str(TASK), str(uuid4())]), {"id": TASK}, {}),
        (TaskFilter(ids=[str(TASK)[-8:].upper()]), {"id": TASK}, {}),
        (TaskFilter(flag="vip"), {"flags": {"vip": True}}, {"flags": {"vip": False}}),
        (TaskFilter(retried=True), {"retry_count": 1}, {"retry_count": 0}),
        (TaskFilter(retried=False), {"retry_count": 0}, {"retry_count": 1}),
        (TaskFilter(older_than=HOUR), {"sent_at": NOW - 2 * HOUR}, {"sent_at": NOW}),
        (TaskFilter(newer_than=HOUR), {"sent_at": NOW}, {"sent_at": NOW - 2 * HOUR}),
        (TaskFilter(text="BOB"), {"kwargs": {"to": "bob@example.org"}}, {"kwargs": {"to": "eve"}}),
        (
            TaskFilter(text="down"),
            {"status": "FAILED", "result": {"err": {"message": "It's Down"}}},
            {"status": "FAILED"},
        ),
        (TaskFilter(text="50%_"), {"args": ["50%_off"]}, {"args": ["500 off"]}),
        (TaskFilter(min_wait=HOUR), {"enqueued_at": NOW - 2 * HOUR}, {"enqueued_at": NOW - HOUR / 2}),
        (TaskFilter(min_run=HOUR), RUNNING, RUNNING | {"started_at": NOW}),
        (TaskFilter(min_run=HOUR), RUNNING, RUNNING | {"status": "PENDING"}),
        (TaskFilter(min_silence=HOUR), RUNNING, RUNNING | {"status": "PENDING"}),
        (TaskFilter(min_attempts=2), {"attempts": 2}, {"attempts": 1}),
        (TaskFilter(due_later=True), {"enqueued_at": NOW + HOUR}, {"enqueued_at": NOW - HOUR}),
        (TaskFilter(due_later=False), {"enqueued_at": NOW - HOUR}, {"enqueued_at": NOW + HOUR}),
    ],
)
async def test_condition_selects_matching_tasks_and_exclude_selects_the_rest(
    database: Database, database_url: str, task_filter: TaskFilter, matching: dict[str, Any], other: dict[str, Any]
) -> None:
    match = await insert_task(database_url, **matching)
    rest = await insert_task(database_url, **other)
    included = await ops_on(database).list_tasks(task_filter)
    excluded = await ops_on(database).list_tasks(TaskFilter(exclude=task_filter))
    assert [task.id for task in included.tasks] == [match]
    assert [task.id for task in excluded.tasks] == [rest]


async def test_silence_counts_from_last_heartbeat_of_current_claim(database: Database, database_url: str) -> None:
    alive = await insert_task(database_url, **RUNNING)
    silent = await insert_task(database_url, **RUNNING)
    for task_id, token in ((alive, 1), (silent, 0)):
        heartbeat = {"role": "runner", "sender_id": "w:1", "task_id": task_id, "claim_token": token}
        await insert(database_url, "horsies_heartbeats", **heartbeat)
    page = await ops_on(database).list_tasks(TaskFilter(min_silence=HOUR / 2))
    assert [task.id for task in page.tasks] == [silent]


async def test_every_condition_must_match(database: Database, database_url: str) -> None:
    await insert_task(database_url, queue_name="a", task_name="x")
    both = await insert_task(database_url, queue_name="a", task_name="y")
    page = await ops_on(database).list_tasks(TaskFilter(queues=["a"], names=["*"], exclude=TaskFilter(names=["x"])))
    assert [task.id for task in page.tasks] == [both]


async def test_task_matching_any_excluded_filter_is_left_out(database: Database, database_url: str) -> None:
    await insert_task(database_url, queue_name="a", task_name="y")
    await insert_task(database_url, queue_name="b", task_name="x")
    neither = await insert_task(database_url, queue_name="b", task_name="y")
    page = await ops_on(database).list_tasks(TaskFilter(exclude=(TaskFilter(queues=["a"]), TaskFilter(names=["x"]))))
    assert [task.id for task in page.tasks] == [neither]


@pytest.mark.parametrize(
    "conditions",
    [
        {"statuses": ["NOPE"]},
        {"worker_id": "w-7"},
        {"workflow_id": "4e14a9f"},
        {"ids": ["w-7"]},
        {"exclude": TaskFilter(exclude=TaskFilter(queues=["a"]))},
    ],
)
def test_invalid_filter_is_rejected(conditions: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        TaskFilter(**conditions)
