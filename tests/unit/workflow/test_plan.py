"""The plan of a spec: resolved options, node indexes and encoded arguments."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from horsies import NodeKey, OnError, SubWorkflowNode, SuccessCase, SuccessPolicy, WorkflowDefinition, from_node
from horsies.model.workflow.plan import JoinType, SuccessRule
from tests.support.workflows import add, app, app_with_queues, post, report, total

SOON = datetime(2030, 1, 1, tzinfo=UTC)


class Pair(WorkflowDefinition[int]):
    name = "pair"
    definition_key = "tests.plan.pair"
    one = add.node()(a=1)
    both = total.node()(first=from_node(one))

    class Meta:
        output = NodeKey[int]("both")
        on_error = OnError.PAUSE


def test_dependencies_and_argument_sources_are_indexes() -> None:
    one, two = add.node()(a=1), add.node()(a=2)
    both = total.node(waits_for=[two, one, two])(first=from_node(two), second=from_node(one))
    plan = app.workflow("sum", [one, two, both], output=both, definition_key="sum.v1").plan()
    assert (plan.name, plan.definition_key, plan.on_error, plan.output_index) == ("sum", "sum.v1", OnError.FAIL, 2)
    assert plan.nodes[2].dependencies == (0, 1)
    assert plan.nodes[2].args_from == {"first": 1, "second": 0}
    assert plan.nodes[0].kwargs_json == '{"a":1}'


def test_context_sources_are_node_ids() -> None:
    one, two = add.node(node_id="one")(a=1), add.node()(a=2)
    last = report.node(waits_for=[one, two], workflow_ctx_from=[two, one])(title="sum")
    plan = app.workflow("last", [one, two, last], definition_key="last").plan()
    assert plan.nodes[2].ctx_from == ("one", "last:1")
    assert plan.nodes[0].ctx_from is None


def test_queue_priority_and_options_are_resolved() -> None:
    nodes = [
        post.node()(to="a"),
        post.node(queue="slow")(to="b"),
        post.node(priority=1, good_until=SOON)(to="c"),
    ]
    plan = app_with_queues.workflow("mail", nodes, definition_key="mail").plan()
    assert [(node.queue_name, node.priority, node.good_until) for node in plan.nodes] == [
        ("mail", 7, None),
        ("slow", 50, None),
        ("mail", 1, SOON),
    ]
    options = json.loads(plan.nodes[0].options_json)
    assert (options["timeout_ms"], options["flags"]) == (9000, {"infrastructure_resilient": True})
    assert options["retry_policy"]["auto_retry_for"] == ["BUSY"]
    assert plan.nodes[0].max_retries == 1


def test_joins_and_success_cases_are_in_the_plan() -> None:
    one, two = add.node()(a=1), add.node()(a=2)
    last = add.node(waits_for=[one, two], join="quorum", min_success=1, allow_failed_deps=True)(a=3)
    policy = SuccessPolicy([SuccessCase([last, one]), SuccessCase([NodeKey("most:1")])], optional=[two])
    plan = app.workflow("most", [one, two, last], OnError.PAUSE, None, policy, definition_key="most").plan()
    assert (plan.nodes[2].join, plan.nodes[2].min_success) == (JoinType.QUORUM, 1)
    assert plan.nodes[2].allow_failed_deps
    assert plan.on_error is OnError.PAUSE
    assert plan.success_rule == SuccessRule(cases=((0, 2), (1,)), optional=(1,))


def test_sub_workflow_node_has_a_key_and_no_queue() -> None:
    sub = SubWorkflowNode(Pair)
    doubled = total.node()(first=from_node(sub))
    plan = app.workflow("parent", [sub, doubled], definition_key="parent").plan()
    assert plan.nodes[0].is_subworkflow
    assert (plan.nodes[0].name, plan.nodes[0].definition_key) == ("pair", "tests.plan.pair")
    assert (plan.nodes[0].queue_name, plan.nodes[0].priority) == (None, None)
    assert plan.nodes[1].args_from == {"first": 0}


def test_definition_names_nodes_by_attribute() -> None:
    plan = Pair.build(app).plan()
    assert [node.node_id for node in plan.nodes] == ["one", "both"]
    assert (plan.output_index, plan.on_error) == (1, OnError.PAUSE)
    assert list(Pair.get_workflow_nodes()) == ["one", "both"]
    assert Pair.build(app) is not Pair.build(app)
