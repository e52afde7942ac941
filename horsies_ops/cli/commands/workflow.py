"""`horsies workflow`: runs of workflows, listed, drawn, paused, resumed, cancelled and retried."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, Final
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

# Why nothing was done to a run, and what its operator can do instead.


def refusal(action: str, run_id: UUID, run: WorkflowBase | None) -> HorsiesError:
    """The error that says so, of a run as it stands; None is a run that does not exist."""
    if run is None:
        return NotFound(f"there is no run {run_id}", hint="horsies workflow list shows the runs there are")
    status = WorkflowStatus(run.status)
    match action:
        case "retry_workflow":
            return _no_retry(run, status)
        case "pause_workflow" if status is WorkflowStatus.PAUSED:
            return Refused(f"the run {run.id} is PAUSED already", hint=_resumed(run))
        case "resume_workflow" if status is WorkflowStatus.RUNNING:
            return Refused(f"the run {run.id} is RUNNING, not PAUSED", hint=_show_hint(run))
        case _ if status in WORKFLOW_TERMINAL_STATES:
            return Refused(f"the run {run.id} has ended: it is {status}", hint=_begun_again(run, status))
        case _:
            return Refused(f"the run {run.id} was in another state, and has just become {status}", hint="try again")


def _no_retry(run: WorkflowBase, status: WorkflowStatus) -> Refused:
    if run.parent_id is not None:
        message = f"the run {run.id} is a step of another, and begins again with that"
        return Refused(message, hint=f"horsies workflow retry {run.root_id}")
    if status is WorkflowStatus.PAUSED:
        return Refused(f"the run {run.id} has not ended: it is PAUSED", hint=f"{_resumed(run)}; cancel ends it")
    if status not in WORKFLOW_TERMINAL_STATES:
        hint = f"wait for its end, or horsies workflow cancel {run.id} first"
        return Refused(f"the run {run.id} has not ended: it is {status}", hint=hint)
    return Refused(f"the run {run.id} is {status}, and none of its nodes has to run again", hint=_show_hint(run))


def _begun_again(run: WorkflowBase, status: WorkflowStatus) -> str:
    if status is WorkflowStatus.COMPLETED:
        return _show_hint(run)
    return f"horsies workflow retry {run.root_id} runs what failed or was skipped"


def _resumed(run: WorkflowBase) -> str:
    return f"horsies workflow resume {run.id} lets it go on"


def _show_hint(run: WorkflowBase) -> str:
    return f"horsies workflow show {run.id} shows how it stands"


# The commands that pause, resume, cancel and retry runs of workflows.

if TYPE_CHECKING:
    RunChange = Callable[[Ops, UUID], Awaitable[ActionReport]]

ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit.")]
ActorOption = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the audit.")]


def add_actions(app: typer.Typer) -> None:
    """Give the group `workflow` what changes runs."""
    for command in (pause, resume, cancel, retry):
        app.command()(with_global_options(command))


def pause(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Start nothing of a run until it is resumed; what runs may end. Exit 5: no such run; 6: it is not running."""
    return _act(options, run, actor, "paused", lambda ops, run_id: ops.pause_workflow(run_id, reason=reason), json=json)


def resume(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Let a paused run go on. Exit 5: no such run; 6: it is not paused."""
    return _act(
        options, run, actor, "resumed", lambda ops, run_id: ops.resume_workflow(run_id, reason=reason), json=json
    )


def cancel(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    kill: Annotated[bool, typer.Option("--kill", help="End the processes of its running tasks; asks.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """End a run and all below it. Exit 5: no such run; 6: it has ended."""
    if kill and not yes:
        _ask(run)
    return _act(
        options,
        run,
        actor,
        "cancelled",
        lambda ops, run_id: ops.cancel_workflow(run_id, kill=kill, reason=reason),
        json=json,
    )


def retry(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Let a run that has ended begin again where it failed. Exit 5: no such run; 6: nothing of it can."""
    return _act(
        options, run, actor, "begun again", lambda ops, run_id: ops.retry_workflow(run_id, reason=reason), json=json
    )


def _ask(run: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "--kill ends running code, and there is no terminal to ask on",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="--yes goes ahead",
        )
    typer.confirm(f"cancel the run {run} and kill what runs of it?", abort=True, err=True)


def _act(
    options: GlobalOptions,
    run: str,
    actor: str | None,
    what: str,
    change: RunChange,
    *,
    json: bool,
) -> int:
    done, refused = asyncio.run(_changed(options, run, actor, change))
    if json:
        print_json(
            {
                "action": done.action,
                "changed": done.affected > 0,
                "nodes": done.retried_nodes,
                "why": done.skipped[0].why if done.skipped else None,
                "hint": None if refused is None else refused.help_text,
                "audit_id": done.audit_id,
            }
        )
    if refused is not None:
        print_error(refused)
        return refused.exit_code
    if not json:
        print_line(f"{what}, {done.retried_nodes:,} nodes" if done.retried_nodes else what)
    return ExitCode.DONE


async def _changed(
    options: GlobalOptions, run: str, actor: str | None, change: RunChange
) -> tuple[ActionReport, HorsiesError | None]:
    """What was done, or why nothing was, as the run stood a moment later."""
    async with open_ops(options.load_settings().app, actor=actor, via="cli") as ops:
        done = await change(ops, await resolve_run_id(ops, run))
        if done.affected:
            return done, None
        (skipped,) = done.skipped
        detail = await ops.workflow(skipped.id)
        return done, refusal(done.action, skipped.id, None if detail is None else detail.run)


# A run of a workflow as an indented tree.

DEEPEST: Final = 20
"""From how many levels on lines move no further to the right."""

MAX_NAME_LENGTH: Final = 60


def tree_lines(detail: WorkflowDetail) -> Iterator[str]:
    """A line for each node, under the first that it waits for; under the others a line that points there."""
    following: dict[int, list[NodeRow]] = {}
    for node in detail.nodes:
        for dependency in node.dependencies:
            following.setdefault(dependency, []).append(node)
    roots = [node for node in detail.nodes if not node.dependencies]
    # A list of what is still to be drawn, the next line last: a chain may be longer than the stack is deep.
    waiting = [(node, "", node is roots[-1], None) for node in reversed(roots)]
    while waiting:
        node, before, is_last, above = waiting.pop()
        bend = "└─ " if is_last else "├─ "
        if above is not None and above != node.dependencies[0]:
            yield f"{before}{bend}see [{node.index}]"
            continue
        yield f"{before}{bend}{_described(node, detail)}"
        below = following.get(node.index, [])
        indent = before if len(before) >= 3 * DEEPEST else before + ("   " if is_last else "│  ")
        waiting += [(each, indent, each is below[-1], node.index) for each in reversed(below)]


def _described(node: NodeRow, detail: WorkflowDetail) -> str:
    star = "  ★ output" if node.index == detail.run.output_index else ""
    parts = [f"[{node.index}] {_named(node)}", node.status, *_waits_for(node)]
    if node.started_at:
        ended_at = node.completed_at or detail.run.created_at + detail.run.age
        parts.append(format_age(ended_at - node.started_at))
    if node.status == WorkflowTaskStatus.SKIPPED and node.error_message:
        parts.append(sanitize_text(node.error_message, limit=MAX_NAME_LENGTH))
    elif node.error_code:
        parts.append(sanitize_text(node.error_code, limit=MAX_NAME_LENGTH))
    if node.task_id:
        parts.append(f"task {short_form(node.task_id)}")
    child = detail.children.get(node.sub_workflow_id) if node.sub_workflow_id else None
    if child:
        parts.append(f"run {child.id} {child.status} {child.done}/{child.total}")
    return "  ".join(parts) + star


def _named(node: NodeRow) -> str:
    """Its id, and what it runs where the id does not say so."""
    node_id, name = sanitize_text(node.node_id, limit=MAX_NAME_LENGTH), sanitize_text(node.name, limit=MAX_NAME_LENGTH)
    return node_id if node_id in (name, default_node_id(name, node.index)) else f"{node_id} ({name})"


def _waits_for(node: NodeRow) -> Sequence[str]:
    if len(node.dependencies) < 2:
        return ()
    kind = f"{node.min_success} of" if node.join == "quorum" else f"{node.join} of"
    return (f"{kind} {', '.join(map(str, node.dependencies))}",)


# The commands that look at runs of workflows.

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
_NODE = (
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


def statuses(text: str) -> list[WorkflowStatus]:
    """States of runs, in upper or lower case."""
    try:
        return [WorkflowStatus(each.upper()) for each in split_values(text)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not among {', '.join(WorkflowStatus).lower()}") from None


def add_reads(app: typer.Typer) -> None:
    """Give the group `workflow` what looks at runs."""
    app.command("list")(with_global_options(list_))
    app.command()(with_global_options(show))


def list_(
    options: GlobalOptions,
    *,
    status: Annotated[list[Any] | None, list_option("Runs in one of these states.", parser=statuses)] = None,
    name: Annotated[list[Any] | None, list_option("Runs of these names; * and ? stand for anything.")] = None,
    root_only: Annotated[bool, typer.Option("--root-only", help="Leave out runs that are a step of another.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 50,
    after: Annotated[UUID | None, full_id_option("Go on after this run: `next` of the page before.")] = None,
    json: JsonOption = False,
) -> None:
    """List runs of workflows, the newest first."""
    wanted = WorkflowFilter(statuses=flatten(status), names=flatten(name), root_only=root_only)
    page = asyncio.run(_page(options, wanted, after, limit))
    if json:
        print_json({"workflows": [_row_document(run) for run in page.workflows], "next": page.next})
    elif page.workflows:
        _print_page(options, page)
    else:
        options.print_message("no workflows")


def show(
    options: GlobalOptions,
    run: RunIdArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="Cut nothing, however long.")] = False,
    json: JsonOption = False,
) -> None:
    """Draw one run with its nodes as a tree. Exit 5 when there is none."""
    detail = asyncio.run(_detail(options, run))
    if json:
        print_json(_detail_document(detail))
        return
    facts = {**_head(detail.run), "nodes": _counts(detail), "result": detail.run.result, "error": detail.run.error}
    limit = None if full else 400
    print_facts({name: sanitize_text(_shown(value), limit=limit) for name, value in facts.items() if value is not None})
    print_line("")
    for line in tree_lines(detail):
        print_line(line)


async def _page(options: GlobalOptions, wanted: WorkflowFilter, after: UUID | None, limit: int) -> WorkflowPage:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        return await ops.list_workflows(wanted, after=after, limit=limit)


async def _detail(options: GlobalOptions, named: str) -> WorkflowDetail:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        workflow_id = await resolve_run_id(ops, named)
        detail = await ops.workflow(workflow_id)
    if detail is None:
        raise NotFound(f"there is no run {workflow_id}", hint="horsies workflow list shows the runs there are")
    return detail


def _head(run: WorkflowBase) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _RUN_FIELDS}


def _row_document(run: WorkflowRow) -> dict[str, Any]:
    counted = {name: getattr(run, name) for name in ("total", "done", "failed", "skipped", "running", "error_code")}
    return {**_head(run), **counted, "age_s": run.age}


def _detail_document(detail: WorkflowDetail) -> dict[str, Any]:
    nodes = [{name: getattr(node, name) for name in _NODE} for node in detail.nodes]
    ended = {"result": detail.run.result, "error": detail.run.error}
    edges = [{"from": before, "to": node.index} for node in detail.nodes for before in node.dependencies]
    graph = {"output_index": detail.run.output_index, "nodes": nodes, "edges": edges}
    return {**_head(detail.run), **ended, "counts": detail.counts, **graph}


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


def _counts(detail: WorkflowDetail) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(detail.counts.items()))


def _shown(value: object) -> str:
    plain = to_json(value)
    return plain if isinstance(plain, str) else dumps(plain, ensure_ascii=False)


app = group("workflow")

add_reads(app)
add_actions(app)
