"""Nodes: created from tasks, numbered by specs, reusable in several specs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from horsies import (
    ErrorCode,
    NodeKey,
    SubWorkflowNode,
    TaskNode,
    WorkflowContextMissingIdError,
    WorkflowDefinition,
    WorkflowValidationError,
    from_node,
)
from tests.support.workflows import add, app, total


def test_task_makes_a_node_with_keyword_arguments() -> None:
    node = add.node(node_id="sum", priority=3)(a=1, b=2)
    assert isinstance(node, TaskNode)
    assert (node.name, node.node_id, node.priority, node.kwargs) == ("add", "sum", 3, {"a": 1, "b": 2})


@pytest.mark.parametrize("options", [{}, {"args_from": {}}])
def test_positional_arguments_are_rejected_with_the_source_location(options: dict[str, dict[str, object]]) -> None:
    with pytest.raises(WorkflowValidationError, match="2 positional arguments") as raised:
        add.node(**options)(1, 2)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert raised.value.code is ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED
    assert raised.value.location is not None
    assert raised.value.location.file == __file__


def test_from_node_adds_a_dependency_and_an_argument_source() -> None:
    one, two = add.node()(a=1), add.node()(a=2)
    both = total.node(waits_for=[one])(first=from_node(one), second=from_node(two))
    assert both.kwargs == {}
    assert both.args_from == {"first": one, "second": two}
    assert both.waits_for == [one, two]


def test_from_node_works_in_both_node_classes() -> None:
    one = add.node()(a=1)
    assert TaskNode(total, {"first": from_node(one)}).args_from == {"first": one}
    assert SubWorkflowNode(WorkflowDefinition[int], {"x": from_node(one)}).waits_for == [one]


def test_spec_assigns_ids_and_keeps_frozen_copies() -> None:
    one = add.node()(a=1)
    two = add.node(waits_for=[one], node_id="second")(a=2)
    spec = app.workflow("pair", [one, two], definition_key="pair")
    assert [(node.index, node.node_id) for node in (one, two)] == [(0, "pair:0"), (1, "second")]
    assert [(node.index, node.node_id) for node in spec.tasks] == [(0, "pair:0"), (1, "second")]
    with pytest.raises(FrozenInstanceError, match="part of a workflow"):
        spec.tasks[0].priority = 1  # pyright: ignore[reportAttributeAccessIssue]
    one.priority = 1
    assert spec.tasks[0] is not one


def test_later_changes_of_a_node_do_not_affect_the_spec() -> None:
    kwargs = {"a": 1}
    node = TaskNode(add, kwargs)
    spec = app.workflow("one", [node], definition_key="one")
    kwargs["a"] = 2
    node.kwargs = {"a": 3}
    assert spec.tasks[0].kwargs == {"a": 1}
    assert spec.plan().nodes[0].kwargs_json == '{"a":1}'


def test_a_node_may_be_part_of_several_workflows() -> None:
    shared, other = add.node()(a=1), add.node()(a=2)
    first = app.workflow("first", [shared], definition_key="first")
    second = app.workflow("second", [other, shared], definition_key="second")
    assert [node.node_id for node in first.plan().nodes] == ["first:0"]
    assert [node.node_id for node in second.plan().nodes] == ["second:0", "second:1"]
    assert shared.node_id == "second:1"


def test_invalid_spec_does_not_change_its_nodes() -> None:
    node = add.node()(a=1)
    with pytest.raises(WorkflowValidationError):
        app.workflow("", [node], definition_key="none")
    assert (node.index, node.node_id) == (None, None)


def test_key_needs_a_node_id() -> None:
    assert add.node(node_id="sum")(a=1).key() == NodeKey("sum")
    with pytest.raises(WorkflowContextMissingIdError, match="add"):
        add.node()(a=1).key()
