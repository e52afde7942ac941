"""Plans: selected tasks, effects, refusals, warnings and confirmation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies_ops.actions.plan import Selector
from horsies_ops.ops import Ops
from horsies_ops.reads.filters import TaskFilter
from tests.support.rows import insert, insert_task
from tests.support.store import Connection

FAILED = TaskFilter(statuses=["FAILED"])


async def test_plan_groups_tasks_by_effect_with_refused_ones_last(ops: Ops, database_url: str) -> None:
    for code in ("TIMEOUT", "TIMEOUT", "KEY"):
        await insert_task(database_url, status="FAILED", error_code=code)
    await insert_task(database_url, status="FAILED", error_code="KEY", is_workflow_task=True)
    plan = await ops.plan(Action.RETRY, FAILED)
    assert (plan.matched, len(plan.targets), plan.refused_count) == (4, 3, 1)
    assert [(group.count, group.error_code, group.refusal) for group in plan.groups] == [
        (2, "TIMEOUT", None),
        (1, "KEY", None),
        (1, "KEY", SkipReason.TASK_IS_WORKFLOW_TASK),
    ]


async def test_plan_writes_nothing(ops: Ops, database_url: str, connection: Connection) -> None:
    await insert_task(database_url)
    before = await connection.fetch("SELECT *, xmin FROM horsies_tasks")
    await ops.plan(Action.CANCEL, TaskFilter(statuses=["PENDING"]))
    assert await connection.fetch("SELECT *, xmin FROM horsies_tasks") == before
    assert await connection.fetchval("SELECT count(*) FROM horsies_audit") == 0


async def test_unknown_id_is_refused_as_not_found(ops: Ops, database_url: str) -> None:
    known, unknown = await insert_task(database_url), uuid4()
    plan = await ops.plan(Action.CANCEL, [known, unknown])
    assert (plan.matched, plan.refused) == (1, ((unknown, SkipReason.TASK_NOT_FOUND),))


async def test_plan_by_filter_includes_all_pages(ops: Ops, connection: Connection) -> None:
    await connection.execute(
        """INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha)
           SELECT gen_random_uuid(), 'mail.send', now(), '' FROM generate_series(1, 12000)"""
    )
    plan = await ops.plan(Action.CANCEL, TaskFilter(names=["mail.*"]))
    assert (plan.matched, len({target.id for target in plan.targets})) == (12_000, 12_000)


async def test_limit_selects_the_newest_tasks(ops: Ops, database_url: str) -> None:
    ids = [await insert_task(database_url, status="FAILED") for _ in range(3)]
    plan = await ops.plan(Action.RETRY, FAILED, ActionOptions(limit=2))
    assert [target.id for target in plan.targets] == [ids[2], ids[1]]


async def test_tasks_finished_after_as_of_are_not_selected(ops: Ops, database_url: str) -> None:
    earlier = datetime.now(UTC) - timedelta(minutes=1)
    finished = await insert_task(database_url, status="FAILED", created_at=earlier, terminal_at=earlier)
    await insert_task(database_url, status="FAILED", created_at=earlier)
    plan = await ops.plan(Action.RETRY, Selector.matching(FAILED, as_of=earlier + timedelta(seconds=1)))
    assert [target.id for target in plan.targets] == [finished]


async def test_plan_sets_as_of_and_last_id(ops: Ops, database_url: str) -> None:
    task_id = await insert_task(database_url, status="FAILED")
    plan = await ops.plan(Action.RETRY, FAILED)
    assert plan.selector.as_of is not None
    assert plan.selector.last_id == task_id


async def test_a_filter_needs_a_stronger_confirmation_than_few_ids(ops: Ops, database_url: str) -> None:
    task_id = await insert_task(database_url, status="FAILED")
    assert (await ops.plan(Action.RETRY, [task_id])).confirmation_tier == 1
    assert (await ops.plan(Action.RETRY, FAILED)).confirmation_tier == 2


@pytest.mark.parametrize(("state", "tier"), [("running", 2), ("lost", 1)])
async def test_task_running_on_live_worker_needs_a_stronger_confirmation(
    ops: Ops, database_url: str, state: str, tier: int
) -> None:
    worker_id = uuid4()
    now = datetime.now(UTC)
    await insert(
        database_url,
        "horsies_workers",
        id=worker_id,
        hostname="h",
        pid=1,
        version="1",
        queues=["default"],
        processes=1,
        state=state,
        started_at=now,
        last_heartbeat_at=now,
    )
    task_id = await insert_task(database_url, status="RUNNING", started_at=now, claimed_by_worker_id=worker_id)
    plan = await ops.plan(Action.REQUEUE, [task_id], ActionOptions(include_running=True))
    assert plan.confirmation_tier == tier
    assert any("no live worker" in warning for warning in plan.warnings) == (state == "lost")


async def test_plan_warns_that_side_effects_may_happen_again(ops: Ops, database_url: str) -> None:
    never_ran = await insert_task(database_url, status="CANCELLED")
    ran = await insert_task(database_url, status="FAILED", attempts=1)
    plan = await ops.plan(Action.RETRY, [never_ran, ran])
    assert plan.warnings == ("side effects may happen again: 1 of these did start",)


async def test_plan_has_the_equivalent_command_line(ops: Ops, database_url: str) -> None:
    task_id = await insert_task(database_url)
    plan = await ops.plan(Action.CANCEL, [task_id], ActionOptions(kill=True, reason="it's over"))
    assert plan.command == f"""horsies task cancel {task_id} --kill --reason 'it'"'"'s over'"""


def test_empty_filter_is_rejected() -> None:
    with pytest.raises(ValueError, match="every task"):
        Selector.matching(TaskFilter())


async def test_kill_is_rejected_for_other_actions(ops: Ops) -> None:
    with pytest.raises(ValueError, match="kill works only with cancel"):
        await ops.plan(Action.FAIL, [uuid4()], ActionOptions(kill=True))
