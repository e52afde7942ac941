"""Results, context and metadata that a workflow adds to stored arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from horsies.codec.arguments import DecodedArguments, TaskCodec
from horsies.codec.canonical_json import PayloadError
from horsies.codec.values import TypedCodec, ValueCodec
from horsies.model.task_result import ContractCode, OutcomeCode, TaskError, TaskResult
from horsies.model.workflow.plan import NodeKey, WorkflowStatus
from horsies.model.workflow.views import SubWorkflowSummary, WorkflowContext, WorkflowMeta
from horsies.registry.invocation import decode_arguments

Done = TaskResult[None, TaskError]
META = {"workflow_id": "w", "task_index": 3, "task_name": "sum"}
SUMMARY = SubWorkflowSummary(
    status=WorkflowStatus.FAILED, output=None, total_tasks=3, completed_tasks=1, failed_tasks=1, skipped_tasks=1
)


def with_result(start: TaskResult[date, TaskError]) -> Done: ...  # pyright: ignore[reportReturnType]
def with_optional_result(start: TaskResult[date, TaskError] | None = None) -> Done: ...  # pyright: ignore[reportReturnType]
def with_context(workflow_ctx: WorkflowContext, workflow_meta: WorkflowMeta) -> Done: ...  # pyright: ignore[reportReturnType]
def with_optional_context(
    number: int, workflow_ctx: WorkflowContext | None = None, workflow_meta: WorkflowMeta | None = None
) -> Done: ...  # pyright: ignore[reportReturnType]


def codec_of(function: Callable[..., object]) -> TaskCodec:
    return TaskCodec.of(function).unwrap()


def result_codec_for(task_name: str) -> ValueCodec | None:
    return TypedCodec(date) if task_name == "day" else None


def decode_call(function: Callable[..., object], kwargs: str = "{}", **context: Any) -> DecodedArguments:
    return decode_arguments(codec_of(function), "[]", kwargs, json.dumps(context), result_codec_for=result_codec_for)


def context_with(**nodes: Any) -> WorkflowContext:
    return decode_call(with_context, workflow_meta=META, workflow_ctx=nodes).kwargs["workflow_ctx"]


def test_parameter_receives_the_typed_result() -> None:
    call = decode_call(with_result, args_from={"start": {"ok": "2024-02-29"}})
    assert call.kwargs == {"start": TaskResult(ok=date(2024, 2, 29))}


def test_failed_dependency_is_passed_as_error() -> None:
    call = decode_call(with_result, args_from={"start": {"err": {"error_code": "UPSTREAM_SKIPPED"}}})
    assert call.kwargs["start"].err_value.error_code is OutcomeCode.UPSTREAM_SKIPPED


def test_mismatching_result_is_passed_as_error() -> None:
    call = decode_call(with_result, args_from={"start": {"ok": "no day"}})
    assert call.kwargs["start"].err_value.error_code is ContractCode.PYDANTIC_HYDRATION_ERROR


def test_unfinished_dependency_leaves_the_default() -> None:
    assert decode_call(with_optional_result, args_from={}).kwargs == {}


def test_missing_dependency_without_default_raises() -> None:
    with pytest.raises(PayloadError, match="'start': missing"):
        decode_call(with_result, args_from={})


def test_task_result_can_be_sent_as_an_argument() -> None:
    codec = codec_of(with_optional_result)
    for start in (TaskResult(ok=date.min), TaskResult(err=TaskError(error_code="LATE")), None):
        stored = codec.encode((), {"start": start})
        assert codec.decode(*stored).kwargs == {"start": start}


def test_wrong_value_for_a_result_parameter_raises() -> None:
    for wrong in (date.min, TaskResult(ok="x"), None):
        with pytest.raises(PayloadError, match="'start'"):
            codec_of(with_result).encode((), {"start": wrong})


def test_context_and_meta_are_injected() -> None:
    call = decode_call(with_optional_context, '{"number": 1}', workflow_meta=META, workflow_ctx={})
    context = call.kwargs["workflow_ctx"]
    assert call.kwargs["number"] == 1
    assert call.kwargs["workflow_meta"] == WorkflowMeta(workflow_id="w", task_index=3, task_name="sum")
    assert (context.workflow_id, context.task_index, context.task_name) == ("w", 3, "sum")


def test_context_is_absent_without_sources() -> None:
    assert set(decode_call(with_optional_context, '{"number": 1}', workflow_meta=META).kwargs) == {
        "number",
        "workflow_meta",
    }


def test_function_without_injected_parameters_gets_none() -> None:
    assert decode_call(with_optional_result, workflow_meta=META, workflow_ctx={}).kwargs == {}


def test_context_cannot_be_sent() -> None:
    with pytest.raises(PayloadError, match="cannot be sent"):
        codec_of(with_optional_context).encode((1,), {"workflow_meta": {}})


def test_context_results_are_typed_by_task_or_node() -> None:
    context = context_with(a={"result": {"ok": "2024-02-29"}, "task_name": "day"}, b={"result": {"ok": "2024-02-29"}})
    assert context.result_for(NodeKey("a")) == TaskResult(ok=date(2024, 2, 29))
    assert context.result_for(NodeKey("b")) == TaskResult(ok="2024-02-29")
    assert context.result_for(NodeKey("b", TypedCodec(date))) == TaskResult(ok=date(2024, 2, 29))


def test_unlisted_node_raises_key_error() -> None:
    context = context_with(a={"result": {"ok": 1}})
    assert context.has_result(NodeKey("a"))
    assert not context.has_result(NodeKey("b"))
    with pytest.raises(KeyError, match="b"):
        context.result_for(NodeKey("b"))


def test_context_has_the_summary_of_a_sub_workflow() -> None:
    context = context_with(child={"result": {"ok": None}, "summary": SUMMARY.document()}, plain={"result": {"ok": 1}})
    assert context.summary_for(NodeKey("child")) == SUMMARY
    assert not context.has_summary(NodeKey("plain"))
    with pytest.raises(KeyError):
        context.summary_for(NodeKey("plain"))


def test_sub_workflow_name_does_not_select_a_task_codec() -> None:
    child = {"result": {"ok": "2024-02-29"}, "summary": SUMMARY.document(), "task_name": "day"}
    assert context_with(child=child).result_for(NodeKey("child")) == TaskResult(ok="2024-02-29")


@pytest.mark.parametrize("context", ["[]", '{"args_from": 1}', '{"workflow_meta": {"x": 1}, "args_from": []}'])
def test_corrupt_context_raises(context: str) -> None:
    with pytest.raises(PayloadError, match="not a JSON object"):
        decode_arguments(codec_of(with_optional_result), "[]", "{}", context, result_codec_for=result_codec_for)


def test_corrupt_summary_raises() -> None:
    with pytest.raises(PayloadError, match="summary"):
        context_with(child={"summary": {"status": "GONE"}})
