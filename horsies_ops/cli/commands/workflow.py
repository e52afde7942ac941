"""`horsies workflow`: list, show, pause, resume, cancel and retry workflow runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from json import dumps
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from horsies.errors import ErrorCode, ExitCode, HorsiesError, NotFound, Refused, UsageError
from horsies.model.task import short_form
from horsies.model.text import sanitize_text
from horsies.model.workflow.plan import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus, default_node_id
from horsies_ops.actions.report import ActionReport
from horsies_ops.cli.ids import resolve_run_id
from horsies_ops.cli.option_types import RunIdArgument, flatten, full_id_option, list_option, split_values
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import format_age, print_error, print_facts, print_json, print_line, print_table, to_json
from horsies_ops.ops import Ops, open_ops
from horsies_ops.reads.workflows import NodeRow, WorkflowBase, WorkflowDetail, WorkflowFilter, WorkflowPage, WorkflowRow

app = group("workflow")

MAX_TREE_DEPTH: Final = 20
"""Deeper levels of a tree are not indented any further."""

MAX_NAME_LENGTH: Final = 60

ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Reason for the audit log.")]
ActorOption = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Actor for the audit log [default: your login].")
]
RunChange = Callable[[Ops, UUID], Awaitable[ActionReport]]

_RUN_FIELDS = (
    "id",
    "name",
    "status",
    "definition_key",
    "on_error",
    "generation",
    "parent_id",
    "root_id",
    "depth",
    "created_at",
    "started_at",
    "paused_at",
    "completed_at",
)
_NODE_FIELDS = (
    "index",
    "node_id",
    "name",
    "status",
    "join",
    "min_success",
    "allow_failed_deps",
    "dependencies",
    "task_id",
    "sub_workflow_id",
    "queue",
    "priority",
    "started_at",
    "completed_at",
    "error_code",
    "error_message",
)


def parse_run_statuses(text: str) -> list[WorkflowStatus]:
    """Parse a comma-separated list of run statuses, in upper or lower case."""
    try:
        return [WorkflowStatus(name.upper()) for name in split_values(text)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not among {', '.join(WorkflowStatus).lower()}") from None


@app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    status: Annotated[list[Any] | None, list_option("Only these statuses.", parser=parse_run_statuses)] = None,
    name: Annotated[list[Any] | None, list_option("Only these workflow names; * and ? are wildcards.")] = None,
    root_only: Annotated[bool, typer.Option("--root-only", help="Leave out sub-workflows.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="List at most N runs.")] = 50,
    after: Annotated[UUID | None, full_id_option("Continue after this run: `next` of the previous page.")] = None,
    json: JsonOption = False,
) -> None:
    """List workflow runs, newest first."""
    run_filter = WorkflowFilter(statuses=flatten(status), names=flatten(name), root_only=root_only)
    page = asyncio.run(_read_page(options, run_filter, after, limit))
    if json:
        print_json({"workflows": [_row_document(run) for run in page.workflows], "next": page.next})
    elif page.workflows:
        _print_page(options, page)
    else:
        options.print_message("no workflows")


@app.command()
@with_global_options
def show(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long values.")] = False,
    json: JsonOption = False,
) -> None:
    """Show a run and its nodes as a tree. Exit 5 if it does not exist."""
    detail = asyncio.run(_read_detail(options, run))
    if json:
        print_json(_detail_document(detail))
        return
    counts = ", ".join(f"{number} {status}" for status, number in sorted(detail.counts.items()))
    facts = {**_run_fields(detail.run), "nodes": counts, "result": detail.run.result, "error": detail.run.error}
    limit = None if full else 400
    print_facts(
        {name: sanitize_text(_format_value(value), limit=limit) for name, value in facts.items() if value is not None}
    )
    print_line("")
    for line in tree_lines(detail):
        print_line(line)


@app.command()
@with_global_options
def pause(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Start no more nodes of a run; running ones finish. Exit 5: no such run; 6: it is not running."""
    return _run_action(
        options, run, actor, "paused", lambda ops, run_id: ops.pause_workflow(run_id, reason=reason), json=json
    )


@app.command()
@with_global_options
def resume(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Resume a paused run. Exit 5: no such run; 6: it is not paused."""
    return _run_action(
        options, run, actor, "resumed", lambda ops, run_id: ops.resume_workflow(run_id, reason=reason), json=json
    )


@app.command()
@with_global_options
def cancel(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the processes of its running tasks; asks for confirmation.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Cancel a run and its sub-workflows. Exit 5: no such run; 6: it has finished."""
    if kill and not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "--kill needs confirmation, but stdin is not a terminal",
                code=ErrorCode.CLI_INVALID_ARGS,
                hint="use --yes to confirm",
            )
        typer.confirm(f"cancel run {run} and kill its running tasks?", abort=True, err=True)
    return _run_action(
        options,
        run,
        actor,
        "cancelled",
        lambda ops, run_id: ops.cancel_workflow(run_id, kill=kill, reason=reason),
        json=json,
    )


@app.command()
@with_global_options
def retry(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Rerun the failed and skipped nodes of a finished run. Exit 5: no such run; 6: nothing to rerun."""
    return _run_action(
        options, run, actor, "retried", lambda ops, run_id: ops.retry_workflow(run_id, reason=reason), json=json
    )


# Actions


def _run_action(
    options: GlobalOptions,
    run: str,
    actor: str | None,
    past_tense: str,
    change: RunChange,
    *,
    json: bool,
) -> int:
    report, refused = asyncio.run(_change_run(options, run, actor, change))
    if json:
        print_json(
            {
                "action": report.action,
                "changed": report.affected > 0,
                "nodes": report.retried_nodes,
                "why": report.skipped[0].why if report.skipped else None,
                "hint": None if refused is None else refused.help_text,
                "audit_id": report.audit_id,
            }
        )
    if refused is not None:
        print_error(refused)
        return refused.exit_code
    if not json:
        print_line(f"{past_tense}, {report.retried_nodes:,} nodes" if report.retried_nodes else past_tense)
    return ExitCode.DONE


async def _change_run(
    options: GlobalOptions, run: str, actor: str | None, change: RunChange
) -> tuple[ActionReport, HorsiesError | None]:
    """Return the report and, if nothing was changed, the error that explains why."""
    async with open_ops(options.load_settings().app, actor=actor, via="cli") as ops:
        report = await change(ops, await resolve_run_id(ops, run))
        if report.affected:
            return report, None
        (skipped,) = report.skipped
        # Read after the refusal: the run may have changed since, and the error must describe its current state.
        detail = await ops.workflow(skipped.id)
        return report, refusal_error(report.action, skipped.id, None if detail is None else detail.run)


def refusal_error(action: str, run_id: UUID, run: WorkflowBase | None) -> HorsiesError:
    """Return the error of an action that changed nothing, given the run's current state; None if it does not exist."""
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


# Lists and documents


async def _read_page(
    options: GlobalOptions, run_filter: WorkflowFilter, after: UUID | None, limit: int
) -> WorkflowPage:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        return await ops.list_workflows(run_filter, after=after, limit=limit)


async def _read_detail(options: GlobalOptions, id_text: str) -> WorkflowDetail:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        run_id = await resolve_run_id(ops, id_text)
        detail = await ops.workflow(run_id)
    if detail is None:
        raise NotFound(f"no run {run_id}", hint="horsies workflow list shows all runs")
    return detail


def _run_fields(run: WorkflowBase) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _RUN_FIELDS}


def _row_document(run: WorkflowRow) -> dict[str, Any]:
    counts = {name: getattr(run, name) for name in ("total", "done", "failed", "skipped", "running", "error_code")}
    return {**_run_fields(run), **counts, "age_s": run.age}


def _detail_document(detail: WorkflowDetail) -> dict[str, Any]:
    return {
        **_run_fields(detail.run),
        "result": detail.run.result,
        "error": detail.run.error,
        "counts": detail.counts,
        "output_index": detail.run.output_index,
        "nodes": [{name: getattr(node, name) for name in _NODE_FIELDS} for node in detail.nodes],
        "edges": [{"from": dependency, "to": node.index} for node in detail.nodes for dependency in node.dependencies],
    }


def _print_page(options: GlobalOptions, page: WorkflowPage) -> None:
    rows = [
        (
            str(run.id),
            run.status,
            sanitize_text(run.name, limit=40),
            f"{run.done}/{run.total}",
            str(run.failed),
            format_age(run.age),
            sanitize_text(run.error_code or "", limit=40),
        )
        for run in page.workflows
    ]
    print_table(("id", "status", "name", "done", "failed", "age", "error"), rows, right=("done", "failed", "age"))
    if page.next is not None:
        options.print_message(f"more: --after {page.next}")


def _format_value(value: object) -> str:
    plain = to_json(value)
    return plain if isinstance(plain, str) else dumps(plain, ensure_ascii=False)


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
    # The name adds nothing to an id that was derived from it.
    label = node_id if node_id in (name, default_node_id(name, node.index)) else f"{node_id} ({name})"
    parts = [f"[{node.index}] {label}", node.status]
    if len(node.dependencies) > 1:
        kind = f"{node.min_success} of" if node.join == "quorum" else f"{node.join} of"
        parts.append(f"{kind} {', '.join(map(str, node.dependencies))}")
    if node.started_at:
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
