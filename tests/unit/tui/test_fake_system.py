"""The fake system of these tests has the methods, filters and codes of a database."""

from __future__ import annotations

from inspect import Parameter, isfunction, signature

import pytest

from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode
from horsies_ops.actions.plan import Selector
from horsies_ops.ops import Ops
from horsies_ops.reads.filters import TaskFilter, parse_filter
from horsies_ops.reads.tasks import TaskRecord
from tests.support.fake_system.source import FakeSource
from tests.support.tui import frozen_system

VERBS = [name for name, value in vars(FakeSource).items() if isfunction(value) and hasattr(Ops, name)]


@pytest.mark.parametrize("name", [name for name in VERBS if not name.startswith("_")])
def test_method_has_parameters_of_ops(name: str) -> None:
    def parameters(owner: type[Ops]) -> dict[str, tuple[object, bool]]:
        _, *others = signature(getattr(owner, name)).parameters.values()
        return {each.name: (each.kind, each.default is Parameter.empty) for each in others}

    assert parameters(FakeSource).items() <= parameters(Ops).items()


async def _found(source: FakeSource, text: str) -> list[TaskRecord]:
    task_filter = parse_filter(text)
    assert isinstance(task_filter, TaskFilter)
    page = await source.list_tasks(task_filter, limit=100_000)
    return [source.system.tasks[task.id] for task in page.tasks]


@pytest.mark.parametrize(
    "text",
    [
        "flag:audited",
        "retried:yes",
        "status:failed",
        "queue:mail",
        "name:etl.*",
        "err:SMTP_TIMEOUT",
        "att>=2",
        "hb>2m",
        "due:later",
        "run>5s",
        "wait>3s",
        "age<10m",
        "text:orders",
    ],
)
async def test_filter_and_its_negation_share_the_tasks(text: str) -> None:
    source = FakeSource(frozen_system(), read_only=True)
    matching, others = await _found(source, text), await _found(source, f"-{text}")
    assert matching
    assert others
    assert len(matching) + len(others) == len(source.system.tasks)


async def test_flag_and_retried_select_by_their_columns() -> None:
    source = FakeSource(frozen_system(), read_only=True)
    assert {task.name for task in await _found(source, "flag:audited")} == {"billing.charge"}
    assert all(task.retry_count for task in await _found(source, "retried:yes"))
    assert not any(task.retry_count for task in await _found(source, "retried:no"))
    assert not await _found(source, "flag:unknown")


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (Action.FAIL, OutcomeCode.OPERATOR_FAILED),
        (Action.CANCEL, OutcomeCode.TASK_CANCELLED),
        (Action.EXPIRE, OutcomeCode.TASK_EXPIRED),
    ],
)
async def test_actions_store_the_codes_of_a_database(action: Action, code: OutcomeCode) -> None:
    source = FakeSource(frozen_system(), read_only=False)
    pending = [task.id for task in source.system.in_state(TaskStatus.PENDING) if task.workflow_id is None]
    plan = await source.plan(action, Selector.of_ids(pending[:1]), ActionOptions())
    await source.apply(plan)
    assert source.system.tasks[pending[0]].error_code == code
