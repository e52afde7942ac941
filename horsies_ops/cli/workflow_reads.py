"""The commands that look at runs of workflows."""

from __future__ import annotations

import asyncio
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.errors import NotFound
from horsies.model.text import safe
from horsies.model.workflow.status import WorkflowStatus
from horsies_ops.cli.ages import age
from horsies_ops.cli.naming import run_named
from horsies_ops.cli.option_types import Run, flat, one_id, several, values
from horsies_ops.cli.output import print_facts, print_json, print_line, print_table, to_json
from horsies_ops.cli.session import GlobalOptions, Json, with_global_options
from horsies_ops.cli.workflow_tree import tree_lines
from horsies_ops.ops import open_ops
from horsies_ops.reads.workflows import WorkflowFilter

if TYPE_CHECKING:
    from horsies_ops.reads.workflows import WorkflowDetail, WorkflowHead, WorkflowPage, WorkflowRow

_HEAD = (
    "id", "name", "status", "definition_key", "on_error", "generation", "parent_id", "root_id", "depth", "created_at",
    "started_at", "paused_at", "completed_at",
)  # fmt: skip
_NODE = (
    "index", "node_id", "name", "status", "join", "min_success", "allow_failed_deps", "dependencies", "task_id",
    "sub_workflow_id", "queue", "priority", "started_at", "completed_at", "error_code", "error_message",
)  # fmt: skip


def statuses(text: str) -> list[WorkflowStatus]:
    """States of runs, in upper or lower case."""
    try:
        return [WorkflowStatus(each.upper()) for each in values(text)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not among {', '.join(WorkflowStatus).lower()}") from None


def add_reads(app: typer.Typer) -> None:
    """Give the group `workflow` what looks at runs."""
    app.command("list")(with_global_options(list_))
    app.command()(with_global_options(show))


def list_(
    options: GlobalOptions,
    *,
    status: Annotated[list[Any] | None, several("Runs in one of these states.", parser=statuses)] = None,
    name: Annotated[list[Any] | None, several("Runs of these names; * and ? stand for anything.")] = None,
    root_only: Annotated[bool, typer.Option("--root-only", help="Leave out runs that are a step of another.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 50,
    after: Annotated[UUID | None, one_id("Go on after this run: `next` of the page before.")] = None,
    json: Json = False,
) -> None:
    """List runs of workflows, the newest first."""
    wanted = WorkflowFilter(statuses=flat(status), names=flat(name), root_only=root_only)
    page = asyncio.run(_page(options, wanted, after, limit))
    if json:
        print_json({"workflows": [_row_document(run) for run in page.workflows], "next": page.next})
    elif page.workflows:
        _print_page(options, page)
    else:
        options.talk("no workflows")


def show(
    options: GlobalOptions,
    run: Run,
    *,
    full: Annotated[bool, typer.Option("--full", help="Cut nothing, however long.")] = False,
    json: Json = False,
) -> None:
    """Draw one run with its nodes as a tree. Exit 5 when there is none."""
    detail = asyncio.run(_detail(options, run))
    if json:
        print_json(_detail_document(detail))
        return
    facts = {**_head(detail.run), "nodes": _counts(detail), "result": detail.run.result, "error": detail.run.error}
    limit = None if full else 400
    print_facts({name: safe(_shown(value), limit=limit) for name, value in facts.items() if value is not None})
    print_line("")
    for line in tree_lines(detail):
        print_line(line)


async def _page(options: GlobalOptions, wanted: WorkflowFilter, after: UUID | None, limit: int) -> WorkflowPage:
    async with open_ops(options.settings().app, read_only=True, via="cli") as ops:
        return await ops.list_workflows(wanted, after=after, limit=limit)


async def _detail(options: GlobalOptions, named: str) -> WorkflowDetail:
    async with open_ops(options.settings().app, read_only=True, via="cli") as ops:
        workflow_id = await run_named(ops, named)
        detail = await ops.workflow(workflow_id)
    if detail is None:
        raise NotFound(f"there is no run {workflow_id}", hint="horsies workflow list shows the runs there are")
    return detail


def _head(run: WorkflowHead) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _HEAD}


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
            safe(run.name, limit=40),
            f"{run.done}/{run.total}",
            str(run.failed),
            age(run.age),
            safe(run.error_code or "", limit=40),
        )
        for run in page.workflows
    ]
    print_table(("id", "status", "name", "done", "failed", "age", "error"), rows, right=("done", "failed", "age"))
    if page.next is not None:
        options.talk(f"more: --after {page.next}")


def _counts(detail: WorkflowDetail) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(detail.counts.items()))


def _shown(value: object) -> str:
    plain = to_json(value)
    return plain if isinstance(plain, str) else dumps(plain, ensure_ascii=False)
