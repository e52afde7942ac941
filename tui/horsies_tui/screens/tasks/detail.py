"""One task: its state, attempts and beats, what happened to it, what it was given and what came of it."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

import humanize
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from horsies.model.operator_actions import Action
from horsies.model.settings import TuiConfig
from horsies.model.task import TaskStatus
from horsies_ops.actions.plan import Selector
from horsies_ops.cli.output import to_json
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import AttemptRow, TaskDetail, TaskRecord
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, format_elapsed, format_time, safe, sanitize, short_id, truncate
from horsies_tui.keys import TABS, Place, bindings
from horsies_tui.messages import ShowRun, ShowTasks
from horsies_tui.screens.base import TASK_TOPICS
from horsies_tui.screens.lists import TaskActionScreen
from horsies_tui.screens.tasks.attempts import attempt_chart
from horsies_tui.screens.tasks.table import LIVE_STATUSES, silence
from horsies_tui.system import show_in_pager
from horsies_tui.theme import Glyphs
from horsies_tui.widgets.filter_bar import SearchBar
from horsies_tui.widgets.page import Page, Section, compact_json, indented_json, task_arguments, truncated_json
from horsies_tui.widgets.page import redact as allowed

# What happened to a task, in the order in which it did.

GAP = "  "
IMMEDIATE = timedelta(seconds=1)
"""What is due so soon after it was sent was not sent for later."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at: datetime
    description: str

    @property
    def text(self) -> str:
        return f"{format_time(self.at)} {sanitize(self.description)}"


def timeline_entries(detail: TaskDetail) -> tuple[TimelineEntry, ...]:
    """From the sending on; what is still to come, as a retry, at the end."""
    found = [
        *_sent_entries(detail.task),
        *(moment for attempt in detail.attempts for moment in _attempt_entries(attempt)),
        *(TimelineEntry(event.at, event.kind) for event in detail.events),
        *_current_entries(detail),
    ]
    return tuple(sorted(found, key=lambda moment: moment.at))


def _sent_entries(task: TaskRecord) -> Iterator[TimelineEntry]:
    yield TimelineEntry(task.sent_at, f"sent again for {short_id(task.retry_of)}" if task.retry_of else "sent")
    if task.enqueued_at - task.sent_at > IMMEDIATE and task.retry_count == 0:
        yield TimelineEntry(task.enqueued_at, "due")


def _attempt_entries(attempt: AttemptRow) -> Iterator[TimelineEntry]:
    yield TimelineEntry(attempt.started_at, f"#{attempt.attempt} started")
    how = f"{attempt.outcome} {attempt.error_code or ''}".rstrip()
    yield TimelineEntry(
        attempt.finished_at, f"#{attempt.attempt} {how}{', to be retried' if attempt.will_retry else ''}"
    )


def _current_entries(detail: TaskDetail) -> Iterator[TimelineEntry]:
    """What the row itself says of the present."""
    task = detail.task
    if task.status in (TaskStatus.CLAIMED, TaskStatus.RUNNING):
        if task.claimed_at is not None:
            waited = task.claimed_at - task.enqueued_at
            yield TimelineEntry(
                task.claimed_at, f"claimed by {short_id(task.worker_id)} (wait {format_elapsed(waited)})"
            )
        if task.started_at is not None:
            yield TimelineEntry(task.started_at, f"#{task.attempt_count + 1} started")
        if detail.last_heartbeat is not None:
            yield TimelineEntry(detail.last_heartbeat.at, "last beat")
    # Where the last attempt says it, it is said.
    if task.finished_at is not None and not any(each.outcome == task.status for each in detail.attempts[:1]):
        yield TimelineEntry(task.finished_at, task.status)
    if task.status == TaskStatus.PENDING and task.retry_count:
        yield TimelineEntry(task.enqueued_at, "next try")
    if task.good_until is not None and task.finished_at is None:
        yield TimelineEntry(task.good_until, "not to be started after this")
    if task.recovery_hold_until is not None:
        yield TimelineEntry(task.recovery_hold_until, "left alone by sweeps until then")


def wrap_parts(texts: Sequence[str], width: int) -> list[str]:
    """The texts beside one another, as many as fit into a line; none is broken, one that is too long is cut."""
    lines: list[str] = []
    for text in (truncate(each, width) for each in texts):
        joined = f"{lines[-1]}{GAP}{text}" if lines else text
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(text)
    return lines


# What the page of a task says, part by part.


def header_content(task_id: UUID, detail: TaskDetail | None, *, back: str, width: int, glyphs: Glyphs) -> Content:
    """The way back, the whole id, the name, and on the right how it stands."""
    name = "" if detail is None else detail.task.name
    standing = _status_content(detail, glyphs)
    left = truncate(sanitize(f" {glyphs.back} {back}   {task_id}   {name}"), max(width - standing.cell_length - 2, 0))
    return safe(left, "bold").pad_right(max(width - len(left) - standing.cell_length - 1, 1)) + standing


def _status_content(detail: TaskDetail | None, glyphs: Glyphs) -> Content:
    if detail is None:
        return Content("")
    if is_stale(detail):
        return safe(f"{glyphs.bad} STALE", "bold $text-error")
    return safe(detail.task.status, "bold")


def is_stale(detail: TaskDetail) -> bool:
    """Whether a sweep would do something about it."""
    return detail.recovery_decision is not None and detail.recovery_decision.changes_state


def state_lines(detail: TaskDetail, now: datetime, width: int) -> list[str]:
    """How it stands, who has it, and what a sweep would make of it."""
    task = detail.task
    attempt = task.attempt_count + (task.status == TaskStatus.RUNNING)
    parts = [
        f"status {task.status}",
        _age_text(detail, now),
        f"queue {task.queue}",
        f"prio {task.priority}",
        f"att {attempt} of {task.max_retries + 1}",
        f"crashes {task.crash_count}" if task.crash_count else "",
    ]
    return [
        *wrap_parts([part for part in parts if part], width),
        *_owner_lines(detail, width),
        *_decision_lines(detail),
    ]


def _age_text(detail: TaskDetail, now: datetime) -> str:
    task, verdict = detail.task, detail.recovery_decision
    if task.status in LIVE_STATUSES:
        limit = f" (limit {format_age(verdict.threshold)})" if verdict is not None and verdict.threshold else ""
        return f"silent {format_age(silence(task, now))}{limit}"
    if task.finished_at is not None:
        return f"ended {format_age(now - task.finished_at)} ago"
    if task.enqueued_at > now:
        return f"due in {format_age(task.enqueued_at - now)}"
    return f"waiting {format_age(now - task.enqueued_at)}"


def _owner_lines(detail: TaskDetail, width: int) -> list[str]:
    task, verdict = detail.task, detail.recovery_decision
    where = f" {task.worker_hostname}:{task.worker_pid}" if task.worker_hostname else ""
    is_odd = verdict is not None and verdict.owner_state not in (None, "running")
    gone = f", {(verdict.owner_state or '').upper()}" if verdict is not None and is_odd else ""
    parts = [
        f"worker {short_id(task.worker_id)}{where}{gone}" if task.worker_id else "",
        f"claim token {task.claim_token}" if task.claim_token else "",
        f"workflow {short_id(task.workflow_id)}" if task.workflow_id else "",
        f"retry of {short_id(task.retry_of)}" if task.retry_of else "",
        f"flags {' '.join(_flags(task))}" if _flags(task) else "",
        "may have overlapped with a later attempt" if task.overlap_possible else "",
        f"does not start again: {task.no_restart}" if task.no_restart else "",
    ]
    return wrap_parts([sanitize(part) for part in parts if part], width)


def _flags(task: TaskRecord) -> list[str]:
    return [name for name, is_set in task.flags.items() if is_set]


def _decision_lines(detail: TaskDetail) -> list[str]:
    if detail.recovery_decision is None or TaskStatus(detail.task.status) not in LIVE_STATUSES:
        return []
    return [detail.recovery_decision.description]


def timeline_lines(detail: TaskDetail, width: int) -> list[str]:
    return wrap_parts([moment.text for moment in timeline_entries(detail)], width)


def event_lines(detail: TaskDetail, settings: TuiConfig) -> list[str]:
    """The oldest first, each with its evidence."""
    found = [
        f"{format_time(each.at)} {each.kind} {compact_json(each.evidence, settings)}"
        for each in reversed(detail.events)
    ]
    return found or ["no events of this task are kept"]


def result_lines(detail: TaskDetail, text: str) -> list[str]:
    """What came of it; else what went wrong last."""
    if text:
        return text.split("\n")
    task = detail.task
    none = "no result" if TaskStatus(task.status).is_terminal else "no result yet"
    last = next((attempt for attempt in detail.attempts if attempt.error_code), None)
    if last is None:
        return [task.failed_reason or none]
    return [none, f"#{last.attempt} {last.error_code}: {last.error_message or last.failed_reason or ''}"]


def payload_size(number: int) -> str:
    return humanize.naturalsize(number, binary=True, format="%.0f")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTask:
    """Which task is looked at, among which, and whence."""

    task_id: UUID
    sibling_ids: tuple[UUID, ...] = ()
    """The list as it was when the task was opened; keys go through it."""
    tab: Place = Place.TASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTask:
    """A task, and its documents as text, made ready beside the loop."""

    task_id: UUID
    detail: TaskDetail | None = None
    """None where there is no such task."""
    arguments: str = ""
    result: str = ""


class TaskDetailScreen(TaskActionScreen):
    """Opened over the list that the task was found in; `[` and `]` go through that list."""

    place = Place.TASK
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.TASK)]

    def __init__(self, context: AppContext, tabs: frozenset[Place], opened: OpenedTask) -> None:
        super().__init__(context, tabs)
        self.task_id = opened.task_id
        self._opened = opened
        self._sibling_ids = opened.sibling_ids or (opened.task_id,)
        self._rendered: RenderedTask | None = None
        self._shows_events = False
        self._search_bar = SearchBar(prompt=context.glyphs.prompt, title="Search")

    @property
    def tab(self) -> Place:
        return self._opened.tab

    def body(self) -> ComposeResult:
        yield Static("", id="task-head")
        yield self._search_bar
        with Page():
            yield Section("State", name="task-state")
            yield Section("Attempts and heartbeats", name="task-strip")
            yield Section("Timeline", name="task-timeline")
            yield Section("Arguments", name="task-given")
            yield Section("Result", name="task-result")

    def on_mount(self) -> None:
        self.query_one(Page).focus()

    def live_queries(self) -> Sequence[LiveQuery]:
        touched_by = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        # Without a word from its worker a task is looked at all the same: silence is what is waited for here.
        return (LiveQuery(name="task", fetch=self._fetch, invalidated_by=touched_by, poll_s=5.0),)

    async def _fetch(self, source: DataSource) -> RenderedTask:
        task_id = self.task_id
        detail = await source.task(task_id)
        return RenderedTask(task_id=task_id) if detail is None else await asyncio.to_thread(self._rendered_task, detail)

    def _rendered_task(self, detail: TaskDetail) -> RenderedTask:
        settings, task = self.context.settings, detail.task
        result = truncated_json(task.result, settings) if task.result_json is not None else ""
        return RenderedTask(
            task_id=task.id, detail=detail, arguments=truncated_json(task_arguments(task), settings), result=result
        )

    def show_result(self, name: str, value: object) -> None:  # noqa: ARG002  # there is one
        if isinstance(value, RenderedTask) and value.task_id == self.task_id:
            self._rendered = value
            self._draw(value)

    @property
    def detail(self) -> TaskDetail | None:
        """The task as it was last read; None until it has been, so that no key can hit one that is not yet seen."""
        return self._rendered.detail if self._rendered is not None and self._rendered.task_id == self.task_id else None

    def _draw(self, shown: RenderedTask) -> None:
        detail, desk = shown.detail, self.context
        self.query_one("#task-head", Static).update(
            header_content(self.task_id, detail, back=TABS[self.tab], width=self.size.width, glyphs=desk.glyphs)
        )
        self.query_one(Page).display = detail is not None
        self._say(is_gone=detail is None)
        if detail is None:
            return
        self._draw_live_sections(detail)
        self._draw_timeline(detail)
        size = len(detail.task.args_json) + len(detail.task.kwargs_json)
        title = f"Arguments ({payload_size(size)}; | opens $PAGER, Y copies)"
        self._section("given").show(shown.arguments.split("\n"), title=title)
        self._section("result").show(result_lines(detail, shown.result))

    def _draw_live_sections(self, detail: TaskDetail) -> None:
        """What changes with time alone."""
        now, room = self.context.clock.now(), self._content_width
        self._section("state").show(state_lines(detail, now, room))
        self._section("strip").show(attempt_chart(detail, now, width=room, glyphs=self.context.glyphs))

    def _draw_timeline(self, detail: TaskDetail) -> None:
        if self._shows_events:
            lines = event_lines(detail, self.context.settings)
            self._section("timeline").show(lines, title="Events (l shows the timeline)")
        else:
            lines = timeline_lines(detail, self._content_width)
            self._section("timeline").show(lines, title="Timeline (l shows the events)")

    def _section(self, name: str) -> Section:
        return self.query_one(f"#task-{name}", Section)

    @property
    def _content_width(self) -> int:
        """Columns between the margins."""
        return max(self.size.width - 3, 20)

    def _say(self, *, is_gone: bool) -> None:
        count = len(self._sibling_ids)
        place = f"{self._sibling_ids.index(self.task_id) + 1} of {count} in {TABS[self.tab]}" if count > 1 else ""
        gone = "there is no such task: retention deletes what is old" if is_gone else ""
        self.set_status(gone, "[ ] previous and next" if place else "", place)

    def tick(self) -> None:
        if self.detail is not None:
            self._draw_live_sections(self.detail)

    def on_resize(self, _: events.Resize) -> None:
        if self._rendered is not None and self.is_drawn:
            self._draw(self._rendered)

    def on_search_bar_changed(self) -> None:
        self.query_one(Page).search(self._search_bar.search_text)
        self._show_hit()

    def on_search_bar_exited(self) -> None:
        self.query_one(Page).focus()
        self._search_bar.hide_if_empty()

    def step_back(self) -> bool:
        return self._search_bar.step_back()

    def action_filter_edit(self) -> None:
        self._search_bar.edit()

    def action_filter_clear(self) -> None:
        self._search_bar.clear()

    def action_find_next(self) -> None:
        self._show_hit(1)

    def action_find_prev(self) -> None:
        self._show_hit(-1)

    def _show_hit(self, step: int = 0) -> None:
        if self._search_bar.search_text:
            at, count = self.query_one(Page).show_hit(step)
            self._search_bar.set_status(f"{at} of {count}, n next" if count else "not here")

    def action_nav_prev(self) -> None:
        self._open_sibling(-1)

    def action_nav_next(self) -> None:
        self._open_sibling(1)

    def _open_sibling(self, step: int) -> None:
        at = self._sibling_ids.index(self.task_id) + step
        if 0 <= at < len(self._sibling_ids):
            self.task_id = self._sibling_ids[at]
            self.query_one(Page).scroll_home(animate=False)
            self.context.queries.refresh("task")

    def selector(self) -> Selector | None:
        return Selector.of_ids([self.task_id]) if self.detail is not None else None

    def requeue_or_retry(self) -> Action:
        is_over = self.detail is not None and TaskStatus(self.detail.task.status).is_terminal
        return Action.RETRY if is_over else Action.REQUEUE

    def after_apply(self, changed: Sequence[UUID]) -> None:  # noqa: ARG002  # there are no marks
        self.context.queries.refresh()

    def action_view_pager(self) -> None:
        """Arguments and result whole, but for what is masked."""
        if (detail := self.detail) is not None:
            result = {"result": detail.task.result} if detail.task.result_json is not None else {}
            text = indented_json({"arguments": task_arguments(detail.task), **result}, self.context.settings)
            show_in_pager(self, text, title=short_id(detail.task.id))

    def action_nav_events(self) -> None:
        self._shows_events = not self._shows_events
        if self.detail is not None:
            self._draw_timeline(self.detail)

    def action_nav_owner(self) -> None:
        """What it belongs to: its run, else all tasks of its worker, else those of its queue."""
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
            document = to_json(detail.task)
            masked = {key: allowed(value, self.context.settings) for key, value in _payloads(detail).items()}
            self.copy_text(json.dumps({**document, **masked}, ensure_ascii=False, default=str), "as JSON")

    def action_copy_cli(self) -> None:
        self.copy_text(shlex.join(["horsies", "task", "show", str(self.task_id)]), "the command")


def _payloads(detail: TaskDetail) -> dict[str, object]:
    task = detail.task
    return {"args_json": task.args, "kwargs_json": task.kwargs, "result_json": task.result}
