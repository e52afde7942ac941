"""Task info, attempts and raw results."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg

from horsies import BrokerErrorCode, Horsies, TaskAttemptOutcome, TaskStatus
from tests.support.store import finish_tasks

_ATTEMPT = """
INSERT INTO horsies_task_attempts
    (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at, error_code)
SELECT id, $1, $1 * 10, $2, $1 = 1, now(), now(), CASE WHEN $2 = 'FAILED' THEN 'BUSY' END FROM horsies_tasks
"""


async def test_optional_fields_are_none_by_default(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    handle = (await app.tasks["double"].send_async(5)).unwrap()
    await finish_tasks(connection, [handle.task_id])
    info = (await handle.info_async()).unwrap()
    assert info is not None
    assert (info.task_id, info.status) == (handle.task_id, TaskStatus.COMPLETED)
    assert (info.result, info.failed_reason, info.attempts) == (None, None, None)
    assert abs(info.sent_at - datetime.now(UTC)).total_seconds() < 60


async def test_attempts_are_ordered_newest_first(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    handle = (await app.tasks["double"].send_async(5)).unwrap()
    without_attempts = (await handle.info_async(include_attempts=True)).unwrap()
    assert without_attempts is not None
    assert without_attempts.attempts == []
    await connection.execute(_ATTEMPT, 1, "FAILED")
    await connection.execute(_ATTEMPT, 2, "COMPLETED")
    info = (await app.get_task_info_async(handle.task_id, include_attempts=True)).unwrap()
    assert info is not None
    assert info.attempts is not None
    assert [(row.attempt, row.outcome, row.will_retry, row.error_code) for row in info.attempts] == [
        (2, TaskAttemptOutcome.COMPLETED, False, None),
        (1, TaskAttemptOutcome.FAILED, True, "BUSY"),
    ]


async def test_result_and_failed_reason_are_included_on_request(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    handle = (await app.tasks["double"].send_async(5)).unwrap()
    await finish_tasks(connection, [handle.task_id])
    await connection.execute("UPDATE horsies_tasks SET failed_reason = 'why not'")
    info = (await handle.info_async(include_result=True, include_failed_reason=True)).unwrap()
    assert info is not None
    assert info.result is not None
    assert (info.result.ok_value, info.failed_reason) == (10, "why not")


async def test_raw_result_is_the_stored_document(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    handle = (await app.tasks["double"].send_async(5)).unwrap()
    assert (await app.get_raw_result_async(handle.task_id)).unwrap() is None
    await finish_tasks(connection, [handle.task_id])
    assert (await app.get_raw_result_async(handle.task_id)).unwrap() == {"ok": 10}


async def test_unknown_task_is_none_and_malformed_id_an_error(app: Horsies) -> None:
    assert (await app.get_task_info_async(str(uuid4()))).unwrap() is None
    assert (await app.get_raw_result_async(str(uuid4()))).unwrap() is None
    assert (await app.get_task_info_async("malformed")).unwrap_err().code is BrokerErrorCode.TASK_INFO_QUERY_FAILED


async def test_blocking_methods_inside_a_loop_return_an_error(app: Horsies) -> None:
    handle = (await app.tasks["double"].send_async(5)).unwrap()
    for result in (
        handle.info(),
        app.get_task_info(handle.task_id),
        app.get_raw_result(handle.task_id),
        app.ping_database(),
    ):
        assert result.unwrap_err().code is BrokerErrorCode.ASYNC_CONTEXT


def test_blocking_methods_work_without_a_loop(blocking_app: Horsies) -> None:
    handle = blocking_app.tasks["double"].send(5).unwrap()
    assert handle.info().unwrap() is not None
    assert blocking_app.get_task_info(handle.task_id).unwrap() is not None
    assert blocking_app.get_raw_result(handle.task_id).unwrap() is None
    assert blocking_app.ping_database().unwrap().latency_ms > 0
    assert blocking_app.get_result(handle.task_id, 0).is_err()
