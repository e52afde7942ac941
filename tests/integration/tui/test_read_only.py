"""Read-only mode below the key bindings: the toolkit and the database session both refuse every action."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from horsies.errors import Refused
from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.retention import RetentionWindows
from horsies.model.settings import PostgresConfig
from horsies.store.connection import StatementFailed
from horsies_ops.ops import OperatorSession, Ops, open_ops
from horsies_tui.keys import ACTIONS
from tests.support.rows import insert_finished_task, insert_listening_worker, insert_owned_task, insert_task

READ_ONLY_TRANSACTION = "25006"
WINDOWS = RetentionWindows(terminal_records=timedelta(hours=1))


class UncheckedSession(OperatorSession):
    """A session that skips the read-only check, so that only the database can refuse."""

    def require_writable(self) -> None:
        return None


def _task_action(action: Action) -> Callable[[Ops, UUID], Awaitable[object]]:
    async def run(ops: Ops, task_id: UUID) -> object:
        return await ops.apply(await ops.plan(action, [task_id], ActionOptions(include_running=True)))

    return run


EPOCH = datetime.fromtimestamp(0, UTC)
CHANGES: dict[str, Callable[[Ops, UUID], Awaitable[object]]] = {
    "op.requeue": _task_action(Action.REQUEUE),
    "op.fail": _task_action(Action.FAIL),
    "op.expire": _task_action(Action.EXPIRE),
    "op.cancel": _task_action(Action.CANCEL),
    "op.pause": lambda ops, _: ops.pause_queue("default"),
    "op.backfill": lambda ops, _: ops.backfill_schedule("nightly", EPOCH, EPOCH + timedelta(days=1)),
    "op.sweep": lambda ops, _: ops.sweep(),
    "op.cleanup": lambda ops, _: ops.cleanup(WINDOWS),
}


@pytest.fixture
async def ops(database_url: str) -> AsyncIterator[Ops]:
    async with open_ops(PostgresConfig(database_url=database_url), read_only=True, via="tui") as ops:
        yield ops


@pytest.fixture
async def task_id(database_url: str) -> UUID:
    """A task that every task action would change, next to a stale task and an old one."""
    await insert_owned_task(
        database_url, "RUNNING", owner=await insert_listening_worker(database_url, silent_s=3_600), silent_s=3_600
    )
    await insert_finished_task(database_url, age=timedelta(days=90))
    return await insert_task(database_url)


def test_every_mutating_action_is_covered() -> None:
    assert {action.id for action in ACTIONS if action.mutates} == CHANGES.keys()


@pytest.mark.parametrize("action", CHANGES)
async def test_toolkit_refuses_changes(ops: Ops, task_id: UUID, action: str) -> None:
    with pytest.raises(Refused, match="read-only"):
        await CHANGES[action](ops, task_id)


@pytest.mark.parametrize("action", CHANGES)
async def test_database_refuses_changes_that_bypass_toolkit(ops: Ops, task_id: UUID, action: str) -> None:
    unchecked = replace(ops, session=UncheckedSession(ops.session.database, ops.session.operator))
    with pytest.raises(StatementFailed) as failed:
        await CHANGES[action](unchecked, task_id)
    assert failed.value.sqlstate == READ_ONLY_TRANSACTION
