"""Workflow definitions: registered by key, built with parameters, owned by one app."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from horsies import (
    ErrorCode,
    Horsies,
    NodeKey,
    SubWorkflowNode,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowSpec,
    from_node,
)
from tests.support.workflows import add, app, app_with_queues, fault_codes, post

META = {"workflow_id": "w", "task_index": 0, "task_name": "fan"}


class Fan(WorkflowDefinition[Any]):
    """`width` nodes, counting from the result of another node."""

    name = "fan"
    definition_key = "tests.definitions.fan"

    @classmethod
    def build_with(
        cls,
        app: Horsies,
        *,
        width: int,
        start: TaskResult[int, TaskError] | None = None,
        day: date = date.min,
        workflow_ctx: WorkflowContext | None = None,
    ) -> WorkflowSpec[Any]:
        first = start.ok_value if start else 0
        context = workflow_ctx.result_for(NodeKey("up")).ok_value if workflow_ctx else 0
        nodes = [add.node()(a=first + offset, b=context) for offset in range(width)]
        return app.workflow(f"fan of {day}", nodes, definition_key=cls.definition_key)


def kwargs_of(plan: Any) -> list[str]:
    return [node.kwargs_json for node in plan.nodes]


def test_plan_is_built_from_stored_arguments() -> None:
    plan = app.definitions.build("tests.definitions.fan", {"width": 2, "day": "2024-02-29"}, {})
    assert plan is not None
    assert plan.name == "fan of 2024-02-29"
    assert len(plan.nodes) == 2


def test_results_and_context_of_other_nodes_are_injected() -> None:
    injected = {
        "args_from": {"start": {"ok": 5}},
        "workflow_ctx": {"up": {"result": {"ok": 7}}},
        "workflow_meta": META,
    }
    plan = app.definitions.build("tests.definitions.fan", {"width": 2}, injected)
    assert kwargs_of(plan) == ['{"a":5,"b":7}', '{"a":6,"b":7}']


def test_unknown_key_has_no_plan() -> None:
    assert app.definitions.build("tests.definitions.none", {}, {}) is None


def test_definition_of_another_app_is_unknown() -> None:
    class Theirs(WorkflowDefinition[Any]):
        name = "theirs"
        definition_key = "tests.definitions.theirs"
        one = add.node()(a=1)

    assert Horsies().definitions.build("tests.definitions.theirs", {}, {}) is None
    assert app.definitions.build("tests.definitions.theirs", {}, {}) is not None
    assert Theirs in app.definitions.known()


def test_definition_containing_another_apps_definition_is_unknown() -> None:
    class Inside(WorkflowDefinition[Any]):
        name = "inside"
        definition_key = "tests.definitions.inside"
        one = add.node()(a=1)

    class Around(WorkflowDefinition[Any]):
        name = "around"
        definition_key = "tests.definitions.around"
        inside = SubWorkflowNode(Inside)

    assert Around in app.definitions.known()
    assert Around not in Horsies().definitions.known()


def test_definition_building_another_apps_tasks_is_unknown() -> None:
    class Theirs(WorkflowDefinition[Any]):
        name = "theirs"
        definition_key = "tests.definitions.theirs-built"

        @classmethod
        def build_with(cls, app: Horsies) -> WorkflowSpec[Any]:
            return app.workflow("theirs", [post.node()(to="you")], definition_key=cls.definition_key)

    class TheirsAlone(WorkflowDefinition[Any]):
        name = "theirs alone"
        definition_key = "tests.definitions.theirs-alone"

        @classmethod
        def build_with(cls, app: Horsies) -> WorkflowSpec[Any]:
            del app
            return app_with_queues.workflow("theirs", [post.node()(to="you")], definition_key=cls.definition_key)

    for key in (Theirs.definition_key, TheirsAlone.definition_key):
        assert app.definitions.build(key, {}, {}) is None
        assert app_with_queues.definitions.build(key, {}, {}) is not None


def test_exception_in_build_with_is_raised() -> None:
    failed = {"args_from": {"start": {"err": {"error_code": "GONE"}}}}
    with pytest.raises(ValueError, match="the task failed: GONE"):
        app.definitions.build("tests.definitions.fan", {"width": 1}, failed)


def test_duplicate_key_is_rejected() -> None:
    def define_again() -> None:
        class Doubled(WorkflowDefinition[Any]):
            name = "doubled"
            definition_key = "tests.definitions.fan"

        del Doubled

    assert fault_codes(define_again) == [ErrorCode.WORKFLOW_DUPLICATE_DEFINITION_KEY]


def test_reloaded_definition_replaces_the_first() -> None:
    def define() -> type[WorkflowDefinition[Any]]:
        class Again(WorkflowDefinition[Any]):
            name = "again"
            definition_key = "tests.definitions.again"
            one = add.node()(a=1)

        return Again

    first, second = define(), define()
    assert first not in app.definitions.known()
    assert second in app.definitions.known()


def test_explicit_node_id_is_kept() -> None:
    class Named(WorkflowDefinition[Any]):
        name = "named"
        definition_key = "tests.definitions.named"
        one = add.node(node_id="uno")(a=1)
        two = add.node()(a=2)

    assert [node.node_id for node in Named.build(app).plan().nodes] == ["uno", "two"]


def test_attribute_name_replaces_an_assigned_id() -> None:
    node = add.node()(a=1)
    app.workflow("other", [node], definition_key="other")

    class Taken(WorkflowDefinition[Any]):
        name = "taken"
        definition_key = "tests.definitions.taken"
        one = node

    assert Taken.build(app).plan().nodes[0].node_id == "one"


def test_definition_inherits_nodes() -> None:
    class Base(WorkflowDefinition[Any]):
        one = add.node()(a=1)

    class Derived(Base):
        name = "derived"
        definition_key = "tests.definitions.derived"
        two = add.node()(a=2)

    assert [node.node_id for node in Derived.build(app).plan().nodes] == ["one", "two"]


def fan_fault_codes(**arguments: Any) -> list[object]:
    node = SubWorkflowNode(Fan, **arguments)
    return fault_codes(lambda: app.workflow("w", [*node.waits_for, node], definition_key="w"))


def test_sub_workflow_arguments_must_match_build_with() -> None:
    assert fan_fault_codes(kwargs={"height": 1}) == [ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING] * 2
    assert fan_fault_codes(kwargs={"width": "x"}) == [ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE]
    plan = app.workflow("w", [SubWorkflowNode(Fan, {"width": 3, "day": date.min})], definition_key="w").plan()
    assert kwargs_of(plan) == ['{"day":"0001-01-01","width":3}']


def test_results_can_be_passed_to_a_sub_workflow() -> None:
    one = add.node()(a=1)
    assert fan_fault_codes(kwargs={"width": 1, "day": from_node(one)}) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]
    fan = SubWorkflowNode(Fan, {"width": from_node(one), "start": from_node(one)}, workflow_ctx_from=[one])
    plan = app.workflow("w", [one, fan], definition_key="w").plan()
    assert (plan.nodes[1].args_from, plan.nodes[1].ctx_from) == ({"width": 0, "start": 0}, ("w:0",))


def test_definition_without_build_with_rejects_arguments() -> None:
    class Plain(WorkflowDefinition[Any]):
        name = "plain"
        definition_key = "tests.definitions.plain"
        one = add.node()(a=1)

    node = SubWorkflowNode(Plain, {"width": 1})
    expected = ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH
    assert fault_codes(lambda: app.workflow("w", [node], definition_key="w")) == [expected]
    assert fault_codes(lambda: Plain.build_with(app, width=1)) == [expected]
    assert len(Plain.build_with(app).tasks) == 1


def test_output_must_have_the_declared_type() -> None:
    class Wrong(WorkflowDefinition[str]):
        name = "wrong"
        definition_key = "tests.definitions.wrong"
        one = add.node()(a=1)

        class Meta:
            output = NodeKey[str]("one")

    assert fault_codes(lambda: Wrong.build(app)) == [ErrorCode.WORKFLOW_OUTPUT_TYPE_MISMATCH]


def test_sub_workflow_needs_a_definition_key() -> None:
    class Keyless(WorkflowDefinition[Any]):
        name = "keyless"
        one = TaskNode(add, {"a": 1})

    node = SubWorkflowNode(Keyless)
    expected = [ErrorCode.WORKFLOW_NO_DEFINITION_KEY]
    assert fault_codes(lambda: app.workflow("w", [node], definition_key="w")) == expected


def test_spec_of_build_with_takes_the_key_of_its_class() -> None:
    class Keyed(WorkflowDefinition[Any]):
        name = "keyed"
        definition_key = "tests.definitions.keyed"

        @classmethod
        def build_with(cls, app: Horsies, *, first: int = 1) -> WorkflowSpec[Any]:
            return WorkflowSpec(f"keyed {first}", [add.node()(a=first)], app=app)

    class Derived(Keyed):
        definition_key = "tests.definitions.keyed.derived"

    assert Keyed.build_with(app).definition_key == "tests.definitions.keyed"
    assert Derived.build_with(app, first=2).definition_key == "tests.definitions.keyed.derived"
    plan = app.definitions.build("tests.definitions.keyed", {"first": 3}, {})
    assert plan is not None
    assert (plan.name, plan.definition_key) == ("keyed 3", "tests.definitions.keyed")
    # Outside of build_with a spec still needs its own key.
    assert fault_codes(lambda: WorkflowSpec("none", [add.node()(a=1)])) == [ErrorCode.WORKFLOW_NO_DEFINITION_KEY]
