"""`horsies workflow`: list, show, pause, resume, cancel and retry workflow runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from horsies.errors import ExitCode, HorsiesError, NotFound, Refused
from horsies.model.task import short_form
from horsies.model.text import format_age, sanitize_text
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus, is_chosen_node_id
from horsies_ops.cli.option_types import (
    ActorOption,
    FullOption,
    KillOption,
    ReasonOption,
    RunIdArgument,
    YesOption,
    flatten,
    full_id_option,
    list_option,
    require_terminal,
    resolve_run_id,
)
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, hide_options, with_global_options
from horsies_ops.cli.output import (
    TableColumn,
    format_value,
    print_error,
    print_facts,
    print_json,
    print_line,
    row_document,
    show_rows,
)
from horsies_ops.cli.task_detail import print_result_section

if TYPE_CHECKING:
    from horsies_ops.actions.report import ActionReport
    from horsies_ops.ops import Ops
    from horsies_ops.reads.workflows import NodeRow, WorkflowBase, WorkflowDetail, WorkflowRow

workflow_app = group("workflow")

MAX_TREE_DEPTH: Final = 20
"""Deeper levels of a tree are not indented any further."""

MAX_NAME_LENGTH: Final = 60

COLUMNS: tuple[TableColumn[WorkflowRow], ...] = (
    TableColumn("id", lambda run: str(run.id)),
    TableColumn("status", lambda run: run.status),
    TableColumn("name", lambda run: sanitize_text(run.name, limit=40)),
    TableColumn("done", lambda run: f"{run.done}/{run.total}", right=True),
    TableColumn("failed", lambda run: str(run.failed), right=True),
    TableColumn("age", lambda run: format_age(run.age), right=True),
    TableColumn("error", lambda run: sanitize_text(run.error_code or "", limit=40)),
)


@workflow_app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    status: Annotated[list[Any] | None, list_option("Only runs with this status.", choices=WorkflowStatus)] = None,
    name: Annotated[list[Any] | None, list_option("Only runs with this workflow name; * and ? are wildcards.")] = None,
    root_only: Annotated[bool, typer.Option("--root-only", help="Leave out sub-workflows.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000_000, metavar="N", help="Most rows to list.")] = 50,
    after: Annotated[UUID | None, full_id_option("Continue after this cursor from the previous page.")] = None,
    json: JsonOption = False,
) -> None:
    """List workflow runs.

    Example: horsies workflow list --status failed,paused
    """
    from horsies_ops.reads.workflows import WorkflowFilter

    run_filter = WorkflowFilter(statuses=flatten(status), names=flatten(name), root_only=root_only)
    page = options.read(lambda ops: ops.list_workflows(run_filter, after=after, limit=limit))
    show_rows(options, "workflows", page.workflows, COLUMNS, json=json, next=page.next)
    if page.next is not None and not json:
        options.print_message(f"more: --after {page.next}")


@workflow_app.command()
@with_global_options
def show(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Show one run as a tree of its nodes.

    Example: horsies workflow show 9f3ac06b
    """
    detail = options.read(lambda ops: _read_detail(ops, run))
    if json:
        print_json(_detail_document(detail))
        return
    limit = None if full else 400
    print_facts({name: sanitize_text(format_value(value), limit=limit) for name, value in _facts(detail).items()})
    print_line("")
    for line in tree_lines(detail):
        print_line(line)
    error = None if detail.run.error is None else {"err": detail.run.error}
    mask_keys = options.load_settings().tui.mask_keys
    if error is not None:
        print_result_section("Error", error, mask_keys, full=full)
    if detail.run.result is not None and detail.run.result != error:
        print_result_section("Result", detail.run.result, mask_keys, full=full)


# Actions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """One of the commands that change a run."""

    summary: str
    refusal: str
    """Why it may exit with 6."""
    past_tense: str
    can_kill: bool = False


ACTIONS: Final = {
    "pause": RunCommand(
        summary="Pause a run; running tasks finish.",
        refusal="it is not running",
        past_tense="paused",
    ),
    "resume": RunCommand(summary="Resume a paused run.", refusal="it is not paused", past_tense="resumed"),
    "cancel": RunCommand(
        summary="Cancel a run and its waiting tasks.",
        refusal="it has finished",
        past_tense="cancelled",
        can_kill=True,
    ),
    "retry": RunCommand(
        summary="Run the failed and skipped nodes of a finished run again.",
        refusal="there is nothing to rerun",
        past_tense="retried",
    ),
}


def _command(verb: str, action: RunCommand) -> Callable[..., int]:
    def command(
        options: GlobalOptions,
        run: RunIdArgument,
        *,
        kill: KillOption = False,
        yes: YesOption = False,
        reason: ReasonOption = None,
        actor: ActorOption = None,
        json: JsonOption = False,
    ) -> int:
        if kill and not yes:
            _confirm_kill(run)
        arguments = {"reason": reason} | ({"kill": kill} if action.can_kill else {})
        report, refused = options.act(lambda ops: _change_run(ops, verb, run, arguments), actor=actor)
        if json:
            print_json(_report_document(report, refused))
        if refused is not None:
            print_error(refused)
            return refused.exit_code
        if not json:
            noun = "node" if report.retried_nodes == 1 else "nodes"
            nodes = f", {report.retried_nodes:,} {noun}" if report.retried_nodes else ""
            print_line(f"{action.past_tense}{nodes}")
        return ExitCode.DONE

    return hide_options(command, () if action.can_kill else ("kill", "yes"))


for _verb, _action in ACTIONS.items():
    _notes = f"Exit 5: no such run; 6: {_action.refusal}.\n\nExample: horsies workflow {_verb} 9f3ac06b"
    workflow_app.command(_verb, help=f"{_action.summary}\n\n{_notes}")(with_global_options(_command(_verb, _action)))


def _confirm_kill(run: str) -> None:
    require_terminal("--kill")
    typer.confirm(f"cancel run {run} and kill its running tasks?", abort=True, err=True)


async def _change_run(
    ops: Ops, verb: str, run: str, arguments: Mapping[str, Any]
) -> tuple[ActionReport, HorsiesError | None]:
    """Return the report and, if nothing was changed, the error that explains why."""
    report: ActionReport = await getattr(ops, f"{verb}_workflow")(await resolve_run_id(ops, run), **arguments)
    if report.affected:
        return report, None
    (skipped,) = report.skipped
    # Read after the refusal: the run may have changed since, and the error must describe its current state.
    detail = await ops.workflow(skipped.id)
    return report, refusal_error(report.action, skipped.id, None if detail is None else detail.run)


def _report_document(report: ActionReport, refused: HorsiesError | None) -> dict[str, Any]:
    return {
        "action": report.action,
        "changed": report.affected > 0,
        "nodes": report.retried_nodes,
        "why": report.skipped[0].why if report.skipped else None,
        "hint": None if refused is None else refused.help_text,
        "audit_id": report.audit_id,
    }


def refusal_error(action: str, run_id: UUID, run: WorkflowBase | None) -> HorsiesError:
    """Return the error of an action that changed nothing; `run` is the current state, None if there is no such run."""
    if run is None:
        return NotFound(f"no run {run_id}", hint="horsies workflow list shows all runs")
    status = WorkflowStatus(run.status)
    match action:
        case "retry_workflow":
            return _retry_refusal(run, status)
        case "pause_workflow" if status is WorkflowStatus.PAUSED:
            return Refused(f"run {run.id} is already PAUSED", hint=_resume_hint(run))
        case "resume_workflow" if status is WorkflowStatus.RUNNING:
            return Refused(f"run {run.id} is RUNNING, not PAUSED", hint=_show_hint(run))
        case _ if status is WorkflowStatus.COMPLETED:
            return Refused(f"run {run.id} has finished: it is {status}", hint=_show_hint(run))
        case _ if status in WORKFLOW_TERMINAL_STATES:
            hint = f"horsies workflow retry {run.root_id} reruns failed and skipped nodes"
            return Refused(f"run {run.id} has finished: it is {status}", hint=hint)
        case _:
            return Refused(f"run {run.id} changed meanwhile and is {status} now", hint="try again")


def _retry_refusal(run: WorkflowBase, status: WorkflowStatus) -> Refused:
    if run.parent_id is not None:
        message = f"run {run.id} is a sub-workflow and is retried with its root run"
        return Refused(message, hint=f"horsies workflow retry {run.root_id}")
    if status is WorkflowStatus.PAUSED:
        return Refused(f"run {run.id} has not finished: it is PAUSED", hint=f"{_resume_hint(run)}; cancel ends it")
    if status not in WORKFLOW_TERMINAL_STATES:
        hint = f"wait until it finishes, or run horsies workflow cancel {run.id} first"
        return Refused(f"run {run.id} has not finished: it is {status}", hint=hint)
    return Refused(f"run {run.id} is {status} and has no nodes to rerun", hint=_show_hint(run))


def _resume_hint(run: WorkflowBase) -> str:
    return f"horsies workflow resume {run.id} continues it"


def _show_hint(run: WorkflowBase) -> str:
    return f"horsies workflow show {run.id} shows its state"


# Details of a run


async def _read_detail(ops: Ops, id_text: str) -> WorkflowDetail:
    run_id = await resolve_run_id(ops, id_text)
    if (detail := await ops.workflow(run_id)) is None:
        raise NotFound(f"no run {run_id}", hint="horsies workflow list shows all runs")
    return detail


def _facts(detail: WorkflowDetail) -> dict[str, Any]:
    """Return what `workflow show` prints above the tree."""
    run = detail.run
    facts = {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "nodes": ", ".join(f"{number} {status}" for status, number in sorted(detail.counts.items())),
        "age": run.age,
        **{name.removesuffix("_at"): value for name, value in row_document(run).items() if name.endswith("_at")},
        "definition_key": run.definition_key,
        "on_error": run.on_error,
        "parent": run.parent_id,
        "root": run.root_id if run.parent_id else None,
        "reruns": run.generation - 1 or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _detail_document(detail: WorkflowDetail) -> dict[str, Any]:
    return {
        **row_document(detail.run),
        "counts": detail.counts,
        "nodes": [row_document(node) for node in detail.nodes],
        "edges": [{"from": dependency, "to": node.index} for node in detail.nodes for dependency in node.dependencies],
    }


# The tree of `workflow show`


def tree_lines(detail: WorkflowDetail) -> Iterator[str]:
    """Yield one line per node, below its first dependency; below its other dependencies a reference to that line."""
    successors: dict[int, list[NodeRow]] = {}
    for node in detail.nodes:
        for dependency in node.dependencies:
            successors.setdefault(dependency, []).append(node)
    roots = [node for node in detail.nodes if not node.dependencies]
    # An explicit stack, with the next line last: a chain of nodes may exceed Python's recursion limit.
    stack = [(node, "", node is roots[-1], None) for node in reversed(roots)]
    while stack:
        node, indent, is_last, parent = stack.pop()
        branch = "└─ " if is_last else "├─ "
        # Each node is shown in full only once, or a graph with many joins would grow exponentially.
        if parent is not None and parent != node.dependencies[0]:
            yield f"{indent}{branch}see [{node.index}]"
            continue
        yield f"{indent}{branch}{_node_text(node, detail)}"
        below = successors.get(node.index, [])
        # From MAX_TREE_DEPTH on, lines are no longer indented further, so that they fit the terminal.
        inner = indent if len(indent) >= 3 * MAX_TREE_DEPTH else indent + ("   " if is_last else "│  ")
        stack += [(successor, inner, successor is below[-1], node.index) for successor in reversed(below)]


def _node_text(node: NodeRow, detail: WorkflowDetail) -> str:
    node_id, name = sanitize_text(node.node_id, limit=MAX_NAME_LENGTH), sanitize_text(node.name, limit=MAX_NAME_LENGTH)
    is_chosen = is_chosen_node_id(node.node_id, node.index, task_name=node.name, workflow_name=detail.run.name)
    label = f"{node_id} ({name})" if is_chosen else name
    parts = [f"[{node.index}] {label}", node.status]
    if len(node.dependencies) > 1:
        kind = f"{node.min_success} of" if node.join == "quorum" else f"{node.join} of"
        parts.append(f"{kind} {', '.join(map(str, node.dependencies))}")
    if node.started_at and node.status != WorkflowTaskStatus.SKIPPED:
        ended_at = node.completed_at or detail.run.created_at + detail.run.age
        parts.append(format_age(ended_at - node.started_at))
    if node.status == WorkflowTaskStatus.SKIPPED and node.error_message:
        parts.append(sanitize_text(node.error_message, limit=MAX_NAME_LENGTH))
    elif node.error_code:
        parts.append(sanitize_text(node.error_code, limit=MAX_NAME_LENGTH))
    if node.task_id:
        parts.append(f"task {short_form(node.task_id)}")
    sub_workflow = detail.sub_workflows.get(node.sub_workflow_id) if node.sub_workflow_id else None
    if sub_workflow:
        parts.append(f"run {sub_workflow.id} {sub_workflow.status} {sub_workflow.done}/{sub_workflow.total}")
    return "  ".join(parts) + ("  ★ output" if node.index == detail.run.output_index else "")
