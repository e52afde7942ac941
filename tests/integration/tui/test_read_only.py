"""Read-only mode below the key bindings: the toolkit and the database session both refuse every action."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from horsies.errors import Refused
from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.retention import RetentionWindows
from horsies.model.settings import PostgresConfig, RecoveryConfig
from horsies.store.connection import StatementFailed
from horsies_ops.actions.apply import OperatorSession
from horsies_ops.actions.queues import pause_queue
from horsies_ops.cleanup import cleanup
from horsies_ops.ops import Ops, open_ops
from horsies_ops.sweep import Sweeper
from horsies_tui.keys import ACTIONS
from tests.support.rows import insert_finished_task, insert_listening_worker, insert_owned_task, insert_task

READ_ONLY_TRANSACTION = "25006"
WINDOWS = RetentionWindows(terminal_records=timedelta(hours=1))


class UncheckedSession(OperatorSession):
    """A session that skips the read-only check, so that only the database can refuse."""

    def require_writable(self) -> None:
        return None


def _task_action(action: Action) -> Callable[[Ops, OperatorSession, UUID], Awaitable[object]]:
    async def run(ops: Ops, session: OperatorSession, task_id: UUID) -> object:
        return await session.apply(await ops.plan(action, [task_id], ActionOptions(include_running=True)))

    return run


async def _pause(_: Ops, session: OperatorSession, __: UUID) -> object:
    return await pause_queue(session, "default")


async def _sweep(ops: Ops, session: OperatorSession, _: UUID) -> object:
    return await Sweeper(session=session, reader=ops.reader, local_config=RecoveryConfig()).sweep(SweepOptions())


async def _cleanup(_: Ops, session: OperatorSession, __: UUID) -> object:
    return await cleanup(session, WINDOWS)


CHANGES: dict[str, Callable[[Ops, OperatorSession, UUID], Awaitable[object]]] = {
    "op.requeue": _task_action(Action.REQUEUE),
    "op.fail": _task_action(Action.FAIL),
    "op.expire": _task_action(Action.EXPIRE),
    "op.cancel": _task_action(Action.CANCEL),
    "op.pause": _pause,
    "op.sweep": _sweep,
    "op.cleanup": _cleanup,
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
        await CHANGES[action](ops, ops.session, task_id)


@pytest.mark.parametrize("action", CHANGES)
async def test_database_refuses_changes_that_bypass_toolkit(ops: Ops, task_id: UUID, action: str) -> None:
    with pytest.raises(StatementFailed) as failed:
        await CHANGES[action](ops, UncheckedSession(ops.database, ops.session.operator), task_id)
    assert failed.value.sqlstate == READ_ONLY_TRANSACTION
