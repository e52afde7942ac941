"""Rows stored by `send_many`, and rollback if a batch fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from horsies import Horsies, TaskError, TaskFunction, TaskResult, TaskSendErrorCode, is_err
from tests.support.databases import Cluster


@pytest.fixture
def database_url(cluster: Cluster) -> Iterator[str]:
    """A separate database per test: tests change its tables."""
    with cluster.database(migrated=True) as url:
        yield url


@pytest.fixture
def say(app: Horsies) -> TaskFunction[[str], None]:
    @app.task("say")
    def say(text: str) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    return say


async def test_each_row_has_its_own_fingerprint(
    say: TaskFunction[[str], None], connection: asyncpg.Connection[Any]
) -> None:
    (await say.send_many_async([("a",), {"text": "a"}, say.bind("b")])).unwrap()
    assert await connection.fetchval("SELECT count(DISTINCT enqueue_sha) FROM horsies_tasks") == 3


async def test_text_with_line_breaks_is_stored_unchanged(
    say: TaskFunction[[str], None], connection: asyncpg.Connection[Any]
) -> None:
    texts = ["one\ntwo", "\r\n", "\u2028", ""]
    (await say.send_many_async([(text,) for text in texts])).unwrap()
    rows = await connection.fetch("SELECT args ->> 0 AS text FROM horsies_tasks ORDER BY id")
    assert [row["text"] for row in rows] == texts


async def test_failed_batch_rolls_back_earlier_batches(
    say: TaskFunction[[str], None], connection: asyncpg.Connection[Any]
) -> None:
    await connection.execute("""ALTER TABLE horsies_tasks ADD CHECK (args <> '["1500"]')""")
    result = await say.send_many_async([(str(n),) for n in range(2500)])
    assert is_err(result)
    assert result.error.code is TaskSendErrorCode.ENQUEUE_FAILED
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0
    assert (await say.send_async("and on")).is_ok()
