"""Type checks of the workflow API; checked by pyright, not run by pytest.

A line with an ignore must be an error: pyright reports ignores that are not needed.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

from horsies import (
    AppConfig,
    Horsies,
    NodeKey,
    OnError,
    SubWorkflowNode,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowSpec,
    from_node,
)

app = Horsies(AppConfig())


@app.task("add")
def add(a: int, b: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("spell")
async def spell(number: TaskResult[int, TaskError]) -> TaskResult[str, TaskError]:
    return TaskResult(ok=str(number.ok_value))


class Spelling(WorkflowDefinition[str]):
    name = "spelling"
    definition_key = "spelling.v1"
    one = add.node()(a=1)
    spelt = spell.node()(number=from_node(one))

    class Meta:
        output = NodeKey[str]("spelt")
        on_error = OnError.PAUSE


class Sized(WorkflowDefinition[int]):
    name = "sized"
    definition_key = "sized.v1"

    @classmethod
    def build_with(cls, app: Horsies, *, size: int) -> WorkflowSpec[int]:
        node = add.node()(a=size)
        return app.workflow("sized", [node], output=node, definition_key=cls.definition_key)


def node_has_the_type_of_its_result() -> None:
    assert_type(add.node()(a=1), TaskNode[int])
    assert_type(spell.node()(number=from_node(add.node()(a=1))), TaskNode[str])
    assert_type(add.node(args_from={"a": add.node()(a=1)})(), TaskNode[int])
    assert_type(TaskNode(add, {"a": 1}), TaskNode[int])
    assert_type(SubWorkflowNode(Spelling), SubWorkflowNode[str])
    assert_type(add.node()(a=1).key(), NodeKey[int])
    assert_type(from_node(SubWorkflowNode(Spelling)), TaskResult[str, TaskError])


def spec_has_the_type_of_its_output() -> None:
    node = add.node()(a=1)
    assert_type(app.workflow("w", [node], output=node, definition_key="w"), WorkflowSpec[int])
    assert_type(app.workflow("w", [node], OnError.FAIL, node, definition_key="w"), WorkflowSpec[int])
    assert_type(app.workflow("w", [node], definition_key="w"), WorkflowSpec[dict[str, TaskResult[Any, TaskError]]])
    assert_type(Spelling.build(app), WorkflowSpec[str])
    assert_type(Sized.build_with(app, size=1), WorkflowSpec[int])


def context_returns_typed_results(workflow_ctx: WorkflowContext) -> None:
    assert_type(workflow_ctx.result_for(add.node()(a=1)), TaskResult[int, TaskError])
    assert_type(workflow_ctx.result_for(SubWorkflowNode(Spelling)).ok_value, str)
    assert_type(workflow_ctx.result_for(NodeKey[float]("x")).ok_value, float)


def builder_keeps_its_signature() -> None:
    @app.workflow_builder(cases=[{"size": 1}])
    def build(size: int) -> WorkflowSpec[int]:
        return Sized.build_with(app, size=size)

    assert_type(build(3), WorkflowSpec[int])
    build("3")  # pyright: ignore[reportArgumentType]

    @app.workflow_builder()  # pyright: ignore[reportArgumentType]
    def nothing() -> int:
        return 1


def wrong_arguments_are_type_errors() -> None:
    one = add.node()(a=1)
    add.node()(a="1")  # pyright: ignore[reportArgumentType]
    add.node()()  # pyright: ignore[reportCallIssue]
    add.node()(a=1, c=2)  # pyright: ignore[reportCallIssue]
    add.node(colour="red")  # pyright: ignore[reportCallIssue]
    add.node(join="most")  # pyright: ignore[reportArgumentType]
    add.node(waits_for=[add])  # pyright: ignore[reportArgumentType]
    add.node()(a=from_node(one))  # pyright: ignore[reportArgumentType]
    spell.node()(number=from_node(SubWorkflowNode(Spelling)))  # pyright: ignore[reportArgumentType]
    app.workflow("w", [one])  # pyright: ignore[reportCallIssue]
    app.workflow("w", [add], definition_key="w")  # pyright: ignore[reportArgumentType, reportCallIssue]
    Sized.build_with(app, size="1")  # pyright: ignore[reportArgumentType]
