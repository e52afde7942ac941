from __future__ import annotations

from uuid import uuid4

from horsies.store.database import Database
from tests.support.rows import insert_task
from tests.support.store import ops_on


async def test_arguments_are_combined_into_one_document_per_task(database: Database, database_url: str) -> None:
    named = await insert_task(database_url, kwargs={"user": 7})
    positional = await insert_task(database_url, args=["a"], kwargs={"user": 8})
    found = await ops_on(database).payload_previews([named, positional, uuid4()])
    assert {key: payload.combined_arguments for key, payload in found.items()} == {
        named: {"user": 7},
        positional: {"args": ["a"], "user": 8},
    }


async def test_long_payload_has_only_its_size(database: Database, database_url: str) -> None:
    task_id = await insert_task(database_url, kwargs={"body": "x" * 500})
    (payload,) = (await ops_on(database).payload_previews([task_id], max_bytes=100)).values()
    assert payload.combined_arguments is None
    assert payload.size > 500
