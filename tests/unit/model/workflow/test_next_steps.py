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
DONE, LOST = NodeFinished(status=S.COMPLETED), NodeFinished(status=S.FAILED)


def test_a_finished_node_lets_its_dependents_start() -> None:
    assert _steps(_node(S.RUNNING, backing=OK), _node(after=(0,))) == [FinishNode(0, DONE), Enqueue(1)]


def test_a_sub_workflow_is_started_and_not_enqueued() -> None:
    assert _steps(_node(S.READY, is_subworkflow=True)) == [StartSubWorkflow(0)]


def test_a_task_that_a_cancel_stopped_is_replaced_where_its_run_goes_on_again() -> None:
    stopped = FinishedTask(
        status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.CANCELLED
    )
    assert _steps(_node(S.RUNNING, backing=stopped)) == [ReturnToReady(0), Enqueue(0)]
    assert _steps(_node(S.RUNNING, backing=stopped), status=WorkflowStatus.CANCELLED) == [Skip(0, None)]


def test_skips_cascade_at_once() -> None:
    steps = _steps(_node(S.RUNNING, backing=ERR), _node(after=(0,)), _node(after=(1,)), _node(S.RUNNING))
    assert steps == [FinishNode(0, LOST), Skip(1, 0), Skip(2, 1), SetRunError(0)]


def test_a_failure_does_not_stop_other_branches() -> None:
    steps = _steps(_node(S.RUNNING, backing=ERR), _node(S.RUNNING, backing=OK), _node(after=(1,)))
    assert steps == [FinishNode(0, LOST), FinishNode(1, DONE), Enqueue(2), SetRunError(0)]


def test_a_run_whose_nodes_have_all_ended_is_finished() -> None:
    assert _steps(_node(S.RUNNING, backing=OK)) == [
        FinishNode(0, DONE),
        FinishRun(RunOutcome(status=WorkflowStatus.COMPLETED)),
    ]


def test_a_failed_run_has_the_error_of_the_first_node_that_failed() -> None:
    steps = _steps(_node(S.COMPLETED), _node(S.FAILED), _node(S.FAILED))
    assert steps == [FinishRun(RunOutcome(status=WorkflowStatus.FAILED, error_node=1))]


def test_a_failure_pauses_a_run_that_asked_for_it_and_starts_nothing() -> None:
    steps = _steps(
        _node(S.RUNNING, backing=ERR), _node(S.RUNNING, backing=OK), _node(after=(1,)), on_error=OnError.PAUSE
    )
    assert steps == [FinishNode(0, LOST), FinishNode(1, DONE), PauseRun(0)]


def test_a_failure_that_was_there_before_a_resume_does_not_pause_again() -> None:
    steps = _steps(_node(S.FAILED), _node(S.READY), on_error=OnError.PAUSE)
    assert steps == [Enqueue(1)]


def test_a_paused_run_takes_over_results_and_nothing_else() -> None:
    steps = _steps(_node(S.RUNNING, backing=OK), _node(after=(0,)), status=WorkflowStatus.PAUSED)
    assert steps == [FinishNode(0, DONE)]


def test_a_task_taken_back_by_a_pause_leaves_its_node_ready() -> None:
    taken_back = FinishedTask(
        status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.PAUSED
    )
    assert _steps(_node(S.RUNNING, backing=taken_back), status=WorkflowStatus.PAUSED) == [ReturnToReady(0)]
    assert _steps(_node(S.RUNNING, backing=taken_back)) == [ReturnToReady(0), Enqueue(0)]
    assert _steps(_node(S.RUNNING, backing=taken_back), status=WorkflowStatus.CANCELLED) == [Skip(0, None)]


def test_a_task_taken_back_by_a_cancel_skips_its_node() -> None:
    taken_back = FinishedTask(
        status=TaskStatus.CANCELLED, result_kind=ResultKind.ERR, no_restart=NoRestartReason.CANCELLED
    )
    assert _steps(_node(S.RUNNING, backing=taken_back), status=WorkflowStatus.CANCELLED) == [Skip(0, None)]


def test_what_a_task_did_not_say_is_made_up_of_its_state() -> None:
    expected = {
        TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
        TaskStatus.FAILED: OperationalErrorCode.WORKER_CRASHED,
        TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
        TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
    }
    for status, code in expected.items():
        silent = FinishedTask(status=status, result_kind=ResultKind.MISSING)
        assert _steps(_node(S.RUNNING, backing=silent))[0] == FinishNode(0, NodeFinished(status=S.FAILED, code=code))


def test_a_document_that_is_no_result_counts_as_a_crash() -> None:
    odd = FinishedTask(status=TaskStatus.COMPLETED, result_kind=ResultKind.INVALID)
    crashed = NodeFinished(status=S.FAILED, code=OperationalErrorCode.WORKER_CRASHED)
    assert _steps(_node(S.RUNNING, backing=odd))[0] == FinishNode(0, crashed)


def test_a_child_that_did_not_complete_fails_its_node() -> None:
    for status in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.EXPIRED):
        steps = _steps(_node(S.RUNNING, backing=FinishedSubWorkflow(status=status)))
        assert steps[0] == FinishNode(0, NodeFinished(status=S.FAILED, code=OutcomeCode.SUBWORKFLOW_FAILED))


def test_a_met_case_completes_a_run_in_spite_of_failures() -> None:
    rule = SuccessRule(cases=((0, 1), (2,)))
    steps = _steps(_node(S.FAILED), _node(S.COMPLETED), _node(S.COMPLETED), success_rule=rule)
    assert steps == [FinishRun(RunOutcome(status=WorkflowStatus.COMPLETED))]


def test_an_unmet_policy_blames_the_first_required_node_that_failed() -> None:
    rule = SuccessRule(cases=((2, 1),))
    steps = _steps(_node(S.FAILED), _node(S.FAILED), _node(S.SKIPPED), success_rule=rule)
    assert steps == [FinishRun(RunOutcome(status=WorkflowStatus.FAILED, error_node=1))]


def test_a_skipped_node_satisfies_no_case() -> None:
    steps = _steps(_node(S.FAILED), _node(S.SKIPPED), success_rule=SuccessRule(cases=((1,),)))
    not_met = RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET)
    assert steps == [FinishRun(not_met)]


def test_a_run_without_nodes_has_failed() -> None:
    assert _steps() == [FinishRun(RunOutcome(status=WorkflowStatus.FAILED, code=OutcomeCode.WORKFLOW_FAILED))]


def test_asked_again_when_all_is_under_way_it_has_nothing_to_say() -> None:
    assert _steps(_node(S.ENQUEUED), _node(S.RUNNING), _node(after=(0,), join=JoinType.ANY)) == []


def _node(status: S = S.PENDING, *, after: tuple[int, ...] = (), **others: Any) -> NodeState:
    return NodeState(status=status, dependencies=after, **others)


def _steps(*nodes: NodeState, status: WorkflowStatus = WorkflowStatus.RUNNING, **others: Any) -> list[Step]:
    return list(next_steps(RunState(status=status, nodes=nodes, **others)))
