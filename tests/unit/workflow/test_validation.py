"""An invalid spec raises all its faults at once, with their codes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from horsies import (
    AppConfig,
    ErrorCode,
    Horsies,
    MultipleValidationErrors,
    NodeKey,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowDefinition,
    WorkflowSpec,
    WorkflowValidationError,
    chain,
    from_node,
    group,
)
from tests.support.workflows import add, app, app_with_queues, fault_codes, post, report, spell, total


def codes_for(*nodes: Any, name: str = "w", key: str | None = "w", **options: Any) -> list[object]:
    return fault_codes(lambda: WorkflowSpec(name, nodes, definition_key=key, app=app, **options))


def number(**settings: Any) -> TaskNode[int]:
    return TaskNode(add, {"a": 1}, **settings)


def test_all_faults_are_raised_as_one_error() -> None:
    with pytest.raises(WorkflowValidationError) as raised:
        app.workflow("", [number(priority=0), TaskNode(add)], definition_key="")
    assert isinstance(raised.value, MultipleValidationErrors)
    assert [fault.code for fault in raised.value.report.errors] == [
        ErrorCode.WORKFLOW_NO_NAME,
        ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
        ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
        ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY,
    ]
    assert all(fault.location and fault.location.file == __file__ for fault in raised.value.report.errors)


def test_names_have_a_maximum_length() -> None:
    assert app.workflow("n" * 255, [number()], definition_key="k" * 255).name == "n" * 255
    assert codes_for(number(), name="n" * 256, key="k" * 256) == [
        ErrorCode.WORKFLOW_NO_NAME,
        ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
    ]


def test_task_of_another_app_is_rejected() -> None:
    assert codes_for(number(), TaskNode(post, {"to": "you"}))[0] == ErrorCode.TASK_NOT_REGISTERED


def test_values_of_the_wrong_type_are_rejected() -> None:
    assert codes_for(number(), on_error="explode") == [ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY]
    assert codes_for(number(), success_policy="x") == [ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY]
    assert codes_for(number(), success_policy=SuccessPolicy(cases=["x"])) == [  # pyright: ignore[reportArgumentType]
        ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY
    ]
    assert fault_codes(lambda: TaskNode(add, None)) == [ErrorCode.WORKFLOW_INVALID_KWARG_KEY]  # pyright: ignore[reportArgumentType]


def test_node_id_faults_are_raised_first_and_alone() -> None:
    assert codes_for(number(node_id="a b"), number(node_id="c"), number(node_id="c"), name="") == [
        ErrorCode.WORKFLOW_INVALID_NODE_ID,
        ErrorCode.WORKFLOW_DUPLICATE_NODE_ID,
    ]


def test_explicit_id_may_collide_with_a_default_id() -> None:
    assert codes_for(number(), number(node_id="w:0")) == [ErrorCode.WORKFLOW_DUPLICATE_NODE_ID]


def test_node_listed_twice_is_rejected() -> None:
    node = number()
    assert codes_for(node, node) == [ErrorCode.WORKFLOW_DUPLICATE_NODE_ID]


@pytest.mark.parametrize("value", [add, add.node(), None])
def test_objects_that_are_not_nodes_are_rejected(value: object) -> None:
    assert codes_for(number(), value) == [ErrorCode.WORKFLOW_INVALID_NODE_ID]


def test_workflow_needs_a_name_a_key_and_nodes() -> None:
    assert codes_for(name="", key=None) == [
        ErrorCode.WORKFLOW_NO_NAME,
        ErrorCode.WORKFLOW_NO_NODES,
        ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
    ]


def test_workflow_without_task_nodes_needs_an_app() -> None:
    class Child(WorkflowDefinition[None]):
        name = "child"
        definition_key = "tests.faults.child"
        one = number()

    assert fault_codes(lambda: WorkflowSpec("w", [SubWorkflowNode(Child)], definition_key="w")) == [
        ErrorCode.WORKFLOW_SUBWORKFLOW_APP_MISSING
    ]


def test_dependency_must_be_in_the_workflow() -> None:
    assert codes_for(number(), number(waits_for=[number()])) == [ErrorCode.WORKFLOW_INVALID_DEPENDENCY]


def test_dependency_cycle_is_rejected() -> None:
    one = number(node_id="one")
    two = number(node_id="two", waits_for=[one])
    one.waits_for = [two]
    assert codes_for(one, two) == [ErrorCode.WORKFLOW_NO_ROOT_TASKS, ErrorCode.WORKFLOW_CYCLE_DETECTED]
    with pytest.raises(WorkflowValidationError, match="one → two → one"):
        app.workflow("w", [one, two, number()], definition_key="w")


def test_definitions_that_contain_each_other_are_rejected() -> None:
    class Outer(WorkflowDefinition[None]):
        name = "outer"
        definition_key = "tests.faults.outer"
        one = number()

    class Inner(WorkflowDefinition[None]):
        name = "inner"
        definition_key = "tests.faults.inner"
        outer = SubWorkflowNode(Outer)

    Outer.back = SubWorkflowNode(Inner)  # pyright: ignore[reportAttributeAccessIssue]
    assert fault_codes(lambda: Inner.build(app)) == [ErrorCode.WORKFLOW_CYCLE_DETECTED]


def test_args_from_must_be_a_dependency() -> None:
    one = number()
    assert codes_for(one, TaskNode(total, args_from={"first": one})) == [ErrorCode.WORKFLOW_INVALID_ARGS_FROM]


def test_context_needs_dependencies_and_a_parameter() -> None:
    one, two = number(), number()
    not_a_dependency = report.node(waits_for=[one], workflow_ctx_from=[two])(title="t")
    without_parameter = number(waits_for=[one], workflow_ctx_from=[one])
    assert codes_for(one, two, not_a_dependency, without_parameter) == [
        ErrorCode.WORKFLOW_INVALID_CTX_FROM,
        ErrorCode.WORKFLOW_CTX_PARAM_MISSING,
    ]


def test_output_must_be_in_the_workflow() -> None:
    assert codes_for(number(), output=number()) == [ErrorCode.WORKFLOW_INVALID_OUTPUT]
    assert codes_for(number(), output=NodeKey("gone")) == [ErrorCode.WORKFLOW_INVALID_OUTPUT]


@pytest.mark.parametrize(
    "policy",
    [SuccessPolicy([]), SuccessPolicy([SuccessCase([])]), SuccessPolicy([SuccessCase([number()])])],
)
def test_success_case_must_require_nodes_of_the_workflow(policy: SuccessPolicy) -> None:
    assert codes_for(number(), success_policy=policy) == [ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY]


def test_optional_nodes_must_be_in_the_workflow() -> None:
    node = number()
    policy = SuccessPolicy([SuccessCase([node])], optional=[number()])
    assert codes_for(node, success_policy=policy) == [ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY]


@pytest.mark.parametrize(
    "join",
    [
        {"join": "quorum"},
        {"join": "quorum", "min_success": 0},
        {"join": "quorum", "min_success": 3},
        {"join": "quorum", "min_success": True},
        {"join": "any", "min_success": 1},
        {"min_success": 1},
        {"join": "most"},
    ],
)
def test_impossible_join_is_rejected(join: dict[str, Any]) -> None:
    one, two = number(), number()
    assert codes_for(one, two, number(waits_for=[one, two], **join)) == [ErrorCode.WORKFLOW_INVALID_JOIN]


def test_join_any_needs_a_dependency() -> None:
    assert codes_for(number(join="any")) == [ErrorCode.WORKFLOW_INVALID_JOIN]


def test_argument_that_may_be_missing_needs_a_default() -> None:
    one, two = number(), number()
    early = total.node(join="any")(first=from_node(one), second=from_node(two))
    assert codes_for(one, two, early) == [ErrorCode.WORKFLOW_INVALID_JOIN]


def test_queue_must_be_configured() -> None:
    nodes = [post.node(queue="fax")(to="a")]
    assert fault_codes(lambda: app_with_queues.workflow("w", nodes, definition_key="w")) == [
        ErrorCode.WORKFLOW_UNRESOLVED_QUEUE
    ]
    assert codes_for(number(queue="mail")) == [ErrorCode.WORKFLOW_UNRESOLVED_QUEUE]


def test_arguments_must_match_the_task_parameters() -> None:
    assert codes_for(TaskNode(add, {"b": 1, "c": 2})) == [
        ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
        ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
    ]


@pytest.mark.parametrize("make", [lambda calls: chain(*calls), group])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
def test_chain_and_group_name_what_is_not_a_call(make: Any) -> None:
    with pytest.raises(MultipleValidationErrors) as raised:
        make([add, add.s(1), 5])
    texts = [fault.headline for fault in raised.value.faults]
    assert [text.partition(" of ")[0] for text in texts] == ["error[HRS-003]: call 1", "error[HRS-003]: call 3"]
    assert raised.value.faults[0].help_text == "write task.s(...)"


def test_then_takes_a_call() -> None:
    with pytest.raises(WorkflowValidationError, match="TaskFunction is not a call of a task"):
        group([add.s(1)]).then(add)  # pyright: ignore[reportArgumentType]


def test_call_with_too_many_arguments_names_how_many_the_task_takes() -> None:
    with pytest.raises(WorkflowValidationError, match="3 positional arguments, but it takes 2"):
        chain(add.s(1, 2, 3))


def test_missing_parameter_after_a_group_explains_how_results_are_passed() -> None:
    with pytest.raises(WorkflowValidationError) as raised:
        group(add.s(a=number, b=1) for number in range(2)).then(add.s(b=1))
    assert raised.value.help_text == "several results are passed to **kwargs or workflow_ctx, not to one parameter"


def test_injected_parameter_cannot_be_passed() -> None:
    assert codes_for(TaskNode(report, {"title": "t", "workflow_ctx": None})) == [ErrorCode.WORKFLOW_INVALID_KWARG_KEY]


def test_argument_given_twice_is_rejected() -> None:
    one = number()
    both = TaskNode(total, {"first": from_node(one)}, waits_for=[one], args_from={"first": one})
    found = codes_for(one, both)
    assert found[0] is ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP


@pytest.mark.parametrize("value", ["x", float("nan"), object()])
def test_arguments_must_be_serializable(value: object) -> None:
    assert codes_for(TaskNode(add, {"a": value})) == [ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE]


def test_good_until_must_have_a_time_zone() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001
    assert codes_for(number(good_until=naive)) == [ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE]


def test_result_type_must_match_the_parameter() -> None:
    one = number()
    target = TaskNode(spell, args_from={"number": one}, waits_for=[one])
    assert codes_for(one, target) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]


def test_plain_parameter_takes_the_value_of_a_node_that_must_succeed() -> None:
    one, text = number(), report.node()(title="t")
    plan = app.workflow("w", [one, TaskNode(add, args_from={"a": one}, waits_for=[one])], definition_key="w").plan()
    assert plan.nodes[1].args_from == {"a": 0}
    wrong = TaskNode(add, args_from={"a": text}, waits_for=[text])
    assert codes_for(text, wrong) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]
    unsure = TaskNode(add, args_from={"a": one}, waits_for=[one], allow_failed_deps=True)
    assert codes_for(one, unsure) == [ErrorCode.WORKFLOW_INVALID_JOIN]


def test_error_does_not_contain_argument_values() -> None:
    with pytest.raises(WorkflowValidationError) as raised:
        app.workflow("w", [TaskNode(add, {"a": "hunter2"})], definition_key="w")
    assert "hunter2" not in raised.value.message


def test_results_may_go_to_any_keyword() -> None:
    own = Horsies(AppConfig())

    @own.task("one")
    def one() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    @own.task("untyped")
    def untyped(**results: Any) -> TaskResult[int, TaskError]:
        return TaskResult(ok=len(results))

    @own.task("typed")
    def typed(**results: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
        return TaskResult(ok=len(results))

    @own.task("texts")
    def texts(**results: TaskResult[str, TaskError]) -> TaskResult[int, TaskError]:
        return TaskResult(ok=len(results))

    first = one.node()()
    for task in (untyped, typed):
        node = TaskNode(task, args_from={"anything": first}, waits_for=[first])
        assert own.workflow("w", [first, node], definition_key="w").plan().nodes[1].args_from == {"anything": 0}
    node = TaskNode(texts, args_from={"anything": first}, waits_for=[first])
    codes = fault_codes(lambda: own.workflow("w", [first, node], definition_key="w"))
    assert codes == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]


def test_node_may_name_the_default_queue() -> None:
    plan = app.workflow("w", [number(queue="default")], definition_key="w").plan()
    assert plan.nodes[0].queue_name == "default"
    assert codes_for(number(queue="other")) == [ErrorCode.WORKFLOW_UNRESOLVED_QUEUE]
