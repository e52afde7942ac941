from __future__ import annotations

from typing import Any

from horsies.model.task import TaskStatus
from horsies.model.task_result import OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.workflow.plan import JoinType, OnError, SuccessRule, WorkflowStatus
from horsies.model.workflow.plan import WorkflowTaskStatus as S
from horsies.model.workflow.progress import (
    Enqueue,
    FinishedSubWorkflow,
    FinishedTask,
    FinishNode,
    FinishRun,
    NodeFinished,
    NodeState,
    NoRestartReason,
    PauseRun,
    ResultKind,
    ReturnToReady,
    RunOutcome,
    RunState,
    SetRunError,
    Skip,
    StartSubWorkflow,
    Step,
    next_steps,
)

OK = FinishedTask(status=TaskStatus.COMPLETED, result_kind=ResultKind.OK)
ERR = FinishedTask(status=TaskStatus.FAILED, result_kind=ResultKind.ERR)
NODE_OK, NODE_FAILED = NodeFinished(status=S.COMPLETED), NodeFinished(status=S.FAILED)


def test_finished_node_starts_its_dependents() -> None:
    assert _steps(_node(S.RUNNING, backing=OK), _node(after=(0,))) == [FinishNode(0, NODE_OK), Enqueue(1)]


def test_ready_sub_workflow_is_started() -> None:
    assert _steps(_node(S.READY, is_subworkflow=True)) == [StartSubWorkflow(0)]


def test_task_stopped_by_cancel_is_replaced_after_a_retry() -> None:
    stopped = FinishedTask(
        status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.CANCELLED
    )
    assert _steps(_node(S.RUNNING, backing=stopped)) == [ReturnToReady(0), Enqueue(0)]
    assert _steps(_node(S.RUNNING, backing=stopped), status=WorkflowStatus.CANCELLED) == [Skip(0, None)]


def test_skips_cascade_in_one_pass() -> None:
    steps = _steps(_node(S.RUNNING, backing=ERR), _node(after=(0,)), _node(after=(1,)), _node(S.RUNNING))
    assert steps == [FinishNode(0, NODE_FAILED), Skip(1, 0), Skip(2, 1), SetRunError(0)]


def test_failure_does_not_stop_other_branches() -> None:
    steps = _steps(_node(S.RUNNING, backing=ERR), _node(S.RUNNING, backing=OK), _node(after=(1,)))
    assert steps == [FinishNode(0, NODE_FAILED), FinishNode(1, NODE_OK), Enqueue(2), SetRunError(0)]


def test_run_with_only_finished_nodes_is_finished() -> None:
    assert _steps(_node(S.RUNNING, backing=OK)) == [
        FinishNode(0, NODE_OK),
        FinishRun(RunOutcome(status=WorkflowStatus.COMPLETED)),
    ]


def test_failed_run_has_the_error_of_its_first_failed_node() -> None:
    steps = _steps(_node(S.COMPLETED), _node(S.FAILED), _node(S.FAILED))
    assert steps == [FinishRun(RunOutcome(status=WorkflowStatus.FAILED, error_node=1))]


def test_failure_pauses_a_run_with_on_error_pause() -> None:
    steps = _steps(
        _node(S.RUNNING, backing=ERR), _node(S.RUNNING, backing=OK), _node(after=(1,)), on_error=OnError.PAUSE
    )
    assert steps == [FinishNode(0, NODE_FAILED), FinishNode(1, NODE_OK), PauseRun(0)]


def test_earlier_failure_does_not_pause_again_after_resume() -> None:
    steps = _steps(_node(S.FAILED), _node(S.READY), on_error=OnError.PAUSE)
    assert steps == [Enqueue(1)]


def test_paused_run_only_stores_results() -> None:
    steps = _steps(_node(S.RUNNING, backing=OK), _node(after=(0,)), status=WorkflowStatus.PAUSED)
    assert steps == [FinishNode(0, NODE_OK)]


def test_task_stopped_by_pause_leaves_its_node_ready() -> None:
    stopped = FinishedTask(status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.PAUSED)
    assert _steps(_node(S.RUNNING, backing=stopped), status=WorkflowStatus.PAUSED) == [ReturnToReady(0)]
    assert _steps(_node(S.RUNNING, backing=stopped)) == [ReturnToReady(0), Enqueue(0)]
    assert _steps(_node(S.RUNNING, backing=stopped), status=WorkflowStatus.CANCELLED) == [Skip(0, None)]


def test_task_stopped_by_cancel_skips_its_node() -> None:
    stopped = FinishedTask(
        status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.CANCELLED
    )
    assert _steps(_node(S.RUNNING, backing=stopped), status=WorkflowStatus.CANCELLED) == [Skip(0, None)]


def test_task_without_result_fails_with_a_code_for_its_status() -> None:
    expected = {
        TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
        TaskStatus.FAILED: OperationalErrorCode.WORKER_CRASHED,
        TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
        TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
    }
    for status, code in expected.items():
        without_result = FinishedTask(status=status, result_kind=ResultKind.MISSING)
        assert _steps(_node(S.RUNNING, backing=without_result))[0] == FinishNode(
            0, NodeFinished(status=S.FAILED, code=code)
        )


def test_invalid_result_counts_as_a_crash() -> None:
    invalid = FinishedTask(status=TaskStatus.COMPLETED, result_kind=ResultKind.INVALID)
    crashed = NodeFinished(status=S.FAILED, code=OperationalErrorCode.WORKER_CRASHED)
    assert _steps(_node(S.RUNNING, backing=invalid))[0] == FinishNode(0, crashed)


def test_unsuccessful_sub_workflow_fails_its_node() -> None:
    for status in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.EXPIRED):
        steps = _steps(_node(S.RUNNING, backing=FinishedSubWorkflow(status=status)))
        assert steps[0] == FinishNode(0, NodeFinished(status=S.FAILED, code=OutcomeCode.SUBWORKFLOW_FAILED))


def test_met_success_case_completes_a_run_despite_failures() -> None:
    rule = SuccessRule(cases=((0, 1), (2,)))
    steps = _steps(_node(S.FAILED), _node(S.COMPLETED), _node(S.COMPLETED), success_rule=rule)
    assert steps == [FinishRun(RunOutcome(status=WorkflowStatus.COMPLETED))]


def test_unmet_success_rule_uses_the_first_failed_required_node() -> None:
    rule = SuccessRule(cases=((2, 1),))
    steps = _steps(_node(S.FAILED), _node(S.FAILED), _node(S.SKIPPED), success_rule=rule)
    assert steps == [FinishRun(RunOutcome(status=WorkflowStatus.FAILED, error_node=1))]


def test_skipped_node_does_not_satisfy_a_case() -> None:
    steps = _steps(_node(S.FAILED), _node(S.SKIPPED), success_rule=SuccessRule(cases=((1,),)))
    not_met = RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET)
    assert steps == [FinishRun(not_met)]


def test_run_without_nodes_fails() -> None:
    assert _steps() == [FinishRun(RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_FAILED))]


def test_no_steps_while_everything_is_in_progress() -> None:
    assert _steps(_node(S.ENQUEUED), _node(S.RUNNING), _node(after=(0,), join=JoinType.ANY)) == []


def _node(status: S = S.PENDING, *, after: tuple[int, ...] = (), **others: Any) -> NodeState:
    return NodeState(status=status, dependencies=after, **others)


def _steps(*nodes: NodeState, status: WorkflowStatus = WorkflowStatus.RUNNING, **others: Any) -> list[Step]:
    return list(next_steps(RunState(status=status, nodes=dict(enumerate(nodes)), **others)))
