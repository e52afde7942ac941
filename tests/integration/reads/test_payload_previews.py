from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from horsies.store.database import Database
from tests.support.rows import insert, insert_task, time_ago
from tests.support.store import ops_on


async def test_arguments_are_combined_into_one_document_per_task(database: Database, database_url: str) -> None:
    named = await insert_task(database_url, kwargs={"user": 7})
    positional = await insert_task(database_url, args=["a"], kwargs={"user": 8})
    found = await ops_on(database).payload_previews([named, positional, uuid4()])
    assert {key: payload.arguments for key, payload in found.items()} == {
        named: {"user": 7},
        positional: {"args": ["a"], "user": 8},
    }


async def test_long_payload_has_only_its_size(database: Database, database_url: str) -> None:
    task_id = await insert_task(database_url, kwargs={"body": "x" * 500})
    (payload,) = (await ops_on(database).payload_previews([task_id], max_bytes=100)).values()
    assert payload.arguments is None
    assert payload.size > 500


async def test_positional_arguments_have_the_names_of_the_newest_catalog(database: Database, database_url: str) -> None:
    kind = "positional_or_keyword"
    names = {"newest": ("user", "password"), "older": ("password", "user")}
    for age, (version, (first, second)) in enumerate(names.items()):
        parameters = {first: {"position": 0, "kind": kind}, second: {"position": 1, "kind": kind}}
        await insert(
            database_url,
            "horsies_task_catalog",
            catalog_hash=version,
            task_name="login",
            queue_name="default",
            max_retries=0,
            params_schema=parameters,
            seen_at=time_ago(timedelta(hours=age)),
        )
    task_id = await insert_task(database_url, task_name="login", args=["ada", "hunter2"])
    (payload,) = (await ops_on(database).payload_previews([task_id])).values()
    detail = await ops_on(database).task(task_id)
    assert detail is not None
    assert payload.arguments == detail.arguments == {"user": "ada", "password": "hunter2"}
