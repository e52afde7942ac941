"""Task detail: state, why it waits, attempts and heartbeats, timeline, arguments and result of one task."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import humanize
from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from horsies.model.operator_actions import Action
from horsies.model.settings import TuiConfig
from horsies.model.task import TaskStatus
from horsies.model.waiting import WaitCause
from horsies_ops.actions.plan import Selector
from horsies_ops.cli.output import to_json
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskDetail
from horsies_ops.reads.timeline import timeline_entries
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.format import format_age, format_time, safe, sanitize, short_id, truncate
from horsies_tui.keys import ScreenId, SharedScope, scope_title
from horsies_tui.proposals.model import ProposalFactory, propose_task_action, requeue_or_retry
from horsies_tui.screens.base import TASK_TOPICS, MainScreen, OpenTask, ShowRun, ShowTasks
from horsies_tui.screens.lists import ProposalRunner
from horsies_tui.screens.tasks.attempts import attempt_chart
from horsies_tui.screens.tasks.table import LIVE_STATUSES, silence
from horsies_tui.system import show_in_pager
from horsies_tui.theme import Glyph
from horsies_tui.widgets.filter_bar import SearchBar
from horsies_tui.widgets.page import (
    Page,
    Section,
    coloured_json,
    compact_json,
    indented_json,
    redact,
    stored_json,
    truncated_json,
)

GAP = "  "
_REASON_STYLES = {WaitCause.SILENT: "$text-warning", WaitCause.RECOVERY: "bold $text-warning"}


# Sections of the page


def wrap_parts(parts: Sequence[str], width: int) -> list[str]:
    """Join the parts into lines without breaking any; a part longer than a line is truncated."""
    lines: list[str] = []
    for part in parts:
        text = truncate(part, width)
        joined = f"{lines[-1]}{GAP}{text}" if lines else text
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(text)
    return lines


def timeline_lines(detail: TaskDetail, width: int) -> list[str]:
    entries = timeline_entries(detail)
    return wrap_parts([f"{format_time(entry.at)} {sanitize(entry.description)}" for entry in entries], width)


def header_content(task_id: UUID, detail: TaskDetail | None, *, back: str, width: int) -> Content:
    """Return the title line: the list it came from, full id and name on the left, status on the right."""
    name, status = "", Content("")
    if detail is not None:
        name, status = detail.task.name, safe(detail.task.status, "bold")
        if is_stale(detail):
            status = safe(f"{Glyph.BAD} STALE", "bold $text-error")
    left = truncate(sanitize(f" {Glyph.BACK} {back}   {task_id}   {name}"), max(width - status.cell_length - 2, 0))
    return safe(left, "bold").pad_right(max(width - len(left) - status.cell_length - 1, 1)) + status


def is_stale(detail: TaskDetail) -> bool:
    """Whether a sweep would change the task."""
    return detail.recovery_decision is not None and detail.recovery_decision.changes_state


def state_lines(detail: TaskDetail, now: datetime, width: int) -> list[str]:
    """Return the status and the facts about the last claim."""
    task = detail.task
    attempt = task.attempt_count + (task.status == TaskStatus.RUNNING)
    parts = [
        f"status {task.status}",
        _age_text(detail, now),
        f"queue {task.queue}",
        f"priority {task.priority}",
        f"attempt {attempt} of {task.max_retries + 1}",
        f"crashes {task.crash_count}" if task.crash_count else "",
    ]
    return [*wrap_parts([part for part in parts if part], width), *_owner_lines(detail, width)]


def _age_text(detail: TaskDetail, now: datetime) -> str:
    task, recovery = detail.task, detail.recovery_decision
    if task.status in LIVE_STATUSES:
        limit = (
            f" (limit {format_age(recovery.effective_threshold)})"
            if recovery is not None and recovery.effective_threshold
            else ""
        )
        return f"silent {format_age(silence(task, now))}{limit}"
    if task.finished_at is not None:
        return f"finished {format_age(now - task.finished_at)} ago"
    if task.enqueued_at > now:
        return f"due in {format_age(task.enqueued_at - now)}"
    return f"waiting {format_age(now - task.enqueued_at)}"


def _owner_lines(detail: TaskDetail, width: int) -> list[str]:
    task = detail.task
    child = f", child process {task.worker_pid} on {task.worker_hostname}" if task.worker_hostname else ""
    flags = [name for name, is_set in task.flags.items() if is_set]
    parts = [
        # A claimed or running task has a section about its worker.
        f"worker {short_id(task.worker_id)}{child}" if task.worker_id and detail.owner is None else "",
        f"claim token {task.claim_token}" if task.claim_token else "",
        f"workflow {short_id(task.workflow_id)}" if task.workflow_id else "",
        f"retry of {short_id(task.retry_of)}" if task.retry_of else "",
        f"flags {' '.join(flags)}" if flags else "",
        "a lost attempt may have kept running" if task.overlap_possible else "",
        f"no restart: {task.no_restart}" if task.no_restart else "",
    ]
    return wrap_parts([sanitize(part) for part in parts if part], width)


def event_lines(detail: TaskDetail, settings: TuiConfig) -> Sequence[Content | str]:
    """Return the recorded events with their evidence, oldest first."""
    evidence = [stored_json(partial(getattr, event, "evidence")) for event in detail.events]
    lines = [
        safe(f"{format_time(event.at)} {event.kind} ") + coloured_json(compact_json(value, settings))
        for event, value in zip(detail.events, evidence, strict=True)
    ]
    return lines[::-1] or ["no recorded events for this task"]


def result_lines(detail: TaskDetail, result: Sequence[Content]) -> Sequence[Content | str]:
    """Return the result or, if there is none, the last error."""
    if result:
        return result
    task = detail.task
    none = "no result" if TaskStatus(task.status).is_terminal else "no result yet"
    last = next((attempt for attempt in detail.attempts if attempt.error_code), None)
    if last is None:
        return [task.failed_reason or none]
    return [none, f"#{last.attempt} {last.error_code}: {last.error_message or last.failed_reason or ''}"]


def payload_size(number: int) -> str:
    return humanize.naturalsize(number, binary=True, format="%.0f")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTask:
    """A task with the lines of its arguments and result, formatted in a thread."""

    task_id: UUID
    detail: TaskDetail | None = None
    """None if the task does not exist."""
    arguments: tuple[Content, ...] = ()
    result: tuple[Content, ...] = ()


class TaskDetailScreen(MainScreen, scope=SharedScope.TASK):
    """Opened from a list of tasks; `[` and `]` walk through that list."""

    AUTO_FOCUS = "Page"

    def __init__(self, context: AppContext, request: OpenTask, *, tab: ScreenId) -> None:
        """`tab` is the screen it was opened from."""
        super().__init__(context)
        self.task_id = request.task_id
        self._tab = tab
        self._sibling_ids = request.sibling_ids or (request.task_id,)
        self._rendered: RenderedTask | None = None
        self.proposals = ProposalRunner(self)
        self._shows_events = False
        self.filter_bar = SearchBar(title="Search")

    @property
    def tab(self) -> ScreenId:
        return self._tab

    def body(self) -> ComposeResult:
        yield Static("", id="task-header")
        yield self.filter_bar
        with Page():
            yield Section("State", name="task-state")
            yield Section("", name="task-reasons")
            yield Section("Attempts and heartbeats", name="task-attempts")
            yield Section("Timeline", name="task-timeline")
            yield Section("Arguments", name="task-arguments")
            yield Section("Result", name="task-result")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        # Polled as well: a task going stale sends no notification.
        return (LiveQuery("task", self._fetch, self._show, topics, poll_s=5.0),)

    async def _fetch(self, source: DataSource) -> RenderedTask:
        # Copied: `[` and `]` may change it during the read.
        task_id = self.task_id
        detail = await source.task(task_id)
        # In a thread: formatting a large payload would block the event loop.
        return RenderedTask(task_id=task_id) if detail is None else await asyncio.to_thread(self._render_task, detail)

    def _render_task(self, detail: TaskDetail) -> RenderedTask:
        settings, task = self.context.settings, detail.task
        has_result = task.result_json is not None
        return RenderedTask(
            task_id=task.id,
            detail=detail,
            arguments=truncated_json(stored_json(lambda: detail.arguments), settings),
            result=truncated_json(stored_json(lambda: task.result), settings) if has_result else (),
        )

    def _show(self, rendered: RenderedTask) -> None:
        # A read of the previous task may end after `[` or `]`.
        if rendered.task_id == self.task_id:
            self._rendered = rendered
            self._draw(rendered)
            if rendered.detail is not None:
                self.set_label("op.requeue", requeue_or_retry([rendered.detail.task.status]))

    @property
    def detail(self) -> TaskDetail | None:
        """The task as last read; None until then, so that no key acts on a task not yet on screen."""
        return self._rendered.detail if self._rendered is not None and self._rendered.task_id == self.task_id else None

    def _draw(self, rendered: RenderedTask) -> None:
        detail = rendered.detail
        self.query_one("#task-header", Static).update(
            header_content(self.task_id, detail, back=scope_title(self.tab), width=self.size.width)
        )
        self.query_one(Page).display = detail is not None
        self._update_status(is_missing=detail is None)
        if detail is None:
            return
        self._draw_live_sections(detail)
        self._draw_timeline(detail)
        size = len(detail.task.args_json) + len(detail.task.kwargs_json)
        title = f"Arguments ({payload_size(size)}; | opens $PAGER, Y copies)"
        self._section("arguments").show(rendered.arguments, title=title)
        self._section("result").show(partial(result_lines, detail, rendered.result))

    def _draw_live_sections(self, detail: TaskDetail) -> None:
        """Draw the sections that show ages."""
        now, width = self.context.clock.now(), self._content_width
        self._section("state").show(partial(state_lines, detail, now, width))
        reasons = [
            safe(reason.text, _REASON_STYLES.get(reason.cause, ""))
            for reason in detail.reasons(now - detail.task.read_at)
        ]
        self._section("reasons").display = bool(reasons)
        self._section("reasons").show(reasons, title=detail.reasons_title)
        self._section("attempts").show(partial(attempt_chart, detail, now, width=width))

    def _draw_timeline(self, detail: TaskDetail) -> None:
        if self._shows_events:
            lines = partial(event_lines, detail, self.context.settings)
            self._section("timeline").show(lines, title="Events (l shows the timeline)")
        else:
            lines = partial(timeline_lines, detail, self._content_width)
            self._section("timeline").show(lines, title="Timeline (l shows the events)")

    def _section(self, name: str) -> Section:
        return self.query_one(f"#task-{name}", Section)

    @property
    def _content_width(self) -> int:
        """Columns between the margins."""
        return max(self.size.width - 3, 20)

    def _update_status(self, *, is_missing: bool) -> None:
        index, count = self._sibling_ids.index(self.task_id), len(self._sibling_ids)
        position = f"{index + 1} of {count} in {scope_title(self.tab)}" if count > 1 else ""
        missing = "task not found, perhaps deleted by retention" if is_missing else ""
        self.set_status(missing, "[ ] previous and next" if position else "", position)

    def tick(self) -> None:
        if self.detail is not None:
            # The other sections show no ages and may be long.
            self._draw_live_sections(self.detail)

    def on_resize(self, _: events.Resize) -> None:
        if self._rendered is not None and self.is_drawn:
            self._draw(self._rendered)

    def on_filter_bar_changed(self) -> None:
        self.query_one(Page).search(self.filter_bar.filter)
        self._show_hit()

    def step_back(self) -> bool:
        return self.filter_bar.step_back()

    def action_find_next(self) -> None:
        self._show_hit(1)

    def action_find_prev(self) -> None:
        self._show_hit(-1)

    def _show_hit(self, step: int = 0) -> None:
        if self.filter_bar.filter:
            position, count = self.query_one(Page).show_hit(step)
            self.filter_bar.set_status(f"{position} of {count}, n next" if count else "no matches")

    def action_nav_prev(self) -> None:
        self._open_sibling(-1)

    def action_nav_next(self) -> None:
        self._open_sibling(1)

    def _open_sibling(self, step: int) -> None:
        index = self._sibling_ids.index(self.task_id) + step
        if 0 <= index < len(self._sibling_ids):
            # From here `detail` is None until the new task is read, so no key acts on the old one.
            self.task_id = self._sibling_ids[index]
            self.query_one(Page).scroll_home(animate=False)
            self.context.queries.refresh("task")

    def proposal(self, verb: str) -> ProposalFactory | None:
        if self.detail is None:
            return None
        action = requeue_or_retry([self.detail.task.status]) if verb == "requeue" else Action(verb)
        return partial(propose_task_action, action=action, selector=Selector.of_ids([self.task_id]))

    def action_view_pager(self) -> None:
        """Open the full arguments and result, redacted, in the pager."""
        if (detail := self.detail) is not None:
            task = detail.task
            result = {"result": stored_json(lambda: task.result)} if task.result_json is not None else {}
            text = indented_json({"arguments": stored_json(lambda: detail.arguments), **result}, self.context.settings)
            show_in_pager(self, text, title=short_id(task.id))

    def action_nav_events(self) -> None:
        self._shows_events = not self._shows_events
        if self.detail is not None:
            self._draw_timeline(self.detail)

    def action_nav_owner(self) -> None:
        """Go to its workflow run, else list the tasks of its worker, else those of its queue."""
        if (detail := self.detail) is None:
            return
        task = detail.task
        if task.workflow_id is not None:
            self.post_message(ShowRun(task.workflow_id))
        elif task.worker_id is not None:
            self.post_message(ShowTasks(TaskFilter(worker_id=str(task.worker_id))))
        else:
            self.post_message(ShowTasks(TaskFilter(queues=(task.queue,))))

    def action_copy_id(self) -> None:
        self.copy_text(str(self.task_id), "the id")

    def action_copy_json(self) -> None:
        if (detail := self.detail) is not None:
            task, settings = detail.task, self.context.settings
            payloads = {name: stored_json(partial(getattr, task, name)) for name in ("kwargs", "result")}
            payloads["args"] = stored_json(lambda: detail.positional_arguments)
            redacted = {f"{name}_json": stored_json(partial(redact, payloads[name], settings)) for name in payloads}
            document = {**to_json(task), **redacted}
            text = stored_json(partial(json.dumps, document, ensure_ascii=False, default=str))
            self.copy_text(text, "as JSON")

    def action_copy_cli(self) -> None:
        self.copy_text(shlex.join(["horsies", "task", "show", str(self.task_id)]), "the command")
