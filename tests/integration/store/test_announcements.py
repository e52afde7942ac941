"""The insert trigger: one notification a statement and queue, for work that is due."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

INSERT = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, enqueued_at)
SELECT gen_random_uuid(), 'name', queue, now(), '', clock_timestamp() + delay * interval '1 second'
  FROM unnest($1::text[], $2::int[]) AS row(queue, delay)
"""


@pytest.mark.parametrize(
    ("queues", "delays", "heard"),
    [
        (["mail"], [0], ["mail"]),
        (["mail"] * 500, [0] * 500, ["mail"]),
        (["mail", "sms", "mail"], [0, 0, 0], ["mail", "sms"]),
        (["mail", "sms"], [0, 60], ["mail"]),
        (["mail"], [60], []),
    ],
)
async def test_each_queue_with_due_work_is_announced_once_a_statement(
    database_url: str, queues: list[str], delays: list[int], heard: list[str]
) -> None:
    connection = await asyncpg.connect(database_url)
    received: list[object] = []
    fence = asyncio.Event()

    def hear(_connection: object, _pid: int, channel: str, payload: object) -> None:
        fence.set() if channel == "fence" else received.append(payload)

    await connection.add_listener("horsies_task_new", hear)
    await connection.add_listener("fence", hear)
    await connection.execute(INSERT, queues, delays)
    # Notifications arrive in the order of their commits, so this one closes the list.
    await connection.execute("NOTIFY fence")
    await fence.wait()
    await connection.close()
    assert sorted(map(str, received)) == heard
