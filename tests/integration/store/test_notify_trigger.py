"""The insert trigger: one notification per statement and queue, for tasks due within a minute."""

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
    ("queues", "delays", "notified"),
    [
        (["mail"], [0], ["mail"]),
        (["mail"] * 500, [0] * 500, ["mail"]),
        (["mail", "sms", "mail"], [0, 0, 0], ["mail", "sms"]),
        (["mail", "sms"], [5, 90], ["mail"]),
        (["mail"], [90], []),
    ],
)
async def test_trigger_notifies_once_per_queue_with_due_tasks(
    database_url: str, queues: list[str], delays: list[int], notified: list[str]
) -> None:
    connection = await asyncpg.connect(database_url)
    received: list[object] = []
    has_last = asyncio.Event()

    def on_notification(_connection: object, _pid: int, channel: str, payload: object) -> None:
        has_last.set() if channel == "last" else received.append(payload)

    await connection.add_listener("horsies_task_new", on_notification)
    await connection.add_listener("last", on_notification)
    await connection.execute(INSERT, queues, delays)
    # Notifications arrive in commit order, so all earlier ones have arrived when this one does.
    await connection.execute("NOTIFY last")
    await has_last.wait()
    await connection.close()
    assert sorted(map(str, received)) == notified
