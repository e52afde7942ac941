"""One task: its state, attempts and beats, what happened to it, what it was given and what came of it."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.widgets import Static

from horsies.model.actions import Action
from horsies.model.task import TaskStatus
from horsies_ops.actions.selector import Selector
from horsies_ops.cli.output import to_json
from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filter import TaskFilter
from horsies_tui import task_page
from horsies_tui.actions import TABS, Place, bindings
from horsies_tui.format import short_id
from horsies_tui.messages import RunWanted, TasksWanted
from horsies_tui.pager import show_in_pager
from horsies_tui.screens.acting import ActingScreen
from horsies_tui.screens.main_screen import ANY_TASK
from horsies_tui.store import Want
from horsies_tui.widgets.beat_strip import strip
from horsies_tui.widgets.page import Page, Section
from horsies_tui.widgets.payload import given, pretty, whole
from horsies_tui.widgets.payload import shown as allowed
from horsies_tui.widgets.word_line import WordLine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.tasks import TaskDetail
    from horsies_tui.desk import Desk
    from horsies_tui.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Which task is looked at, among which, and whence."""

    task_id: UUID
    among: tuple[UUID, ...] = ()
    """The list as it was when the task was opened; keys go through it."""
    tab: Place = Place.TASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A task, and its documents as text, made ready beside the loop."""

    task_id: UUID
    detail: TaskDetail | None = None
    """None where there is no such task."""
    given: str = ""
    result: str = ""


class TaskScreen(ActingScreen):
    """Opened over the list that the task was found in; `[` and `]` go through that list."""

    place = Place.TASK
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.TASK)]

    def __init__(self, desk: Desk, tabs: frozenset[Place], opened: Opened) -> None:
        super().__init__(desk, tabs)
        self.task_id = opened.task_id
        self._opened = opened
        self._among = opened.among or (opened.task_id,)
        self._shown: Shown | None = None
        self._has_events = False
        self._search = WordLine(prompt=desk.glyphs.prompt, title="Search")

    @property
    def tab(self) -> Place:
        return self._opened.tab

    def body(self) -> ComposeResult:
        yield Static("", id="task-head")
        yield self._search
        with Page():
            yield Section("State", name="task-state")
            yield Section("Attempts and heartbeats", name="task-strip")
            yield Section("Timeline", name="task-timeline")
            yield Section("Arguments", name="task-given")
            yield Section("Result", name="task-result")

    def on_mount(self) -> None:
        self.query_one(Page).focus()

    def wants(self) -> Sequence[Want]:
        touched_by = ANY_TASK | {Topic.BEATS, Topic.EVENT}
        # Without a word from its worker a task is looked at all the same: silence is what is waited for here.
        return (Want(name="task", fetch=self._fetch, touched_by=touched_by, every_s=5.0),)

    async def _fetch(self, source: Source) -> Shown:
        task_id = self.task_id
        detail = await source.task(task_id)
        return Shown(task_id=task_id) if detail is None else await asyncio.to_thread(self._with_text, detail)

    def _with_text(self, detail: TaskDetail) -> Shown:
        settings, task = self.desk.settings, detail.task
        result = pretty(task.result, settings) if task.result_json is not None else ""
        return Shown(task_id=task.id, detail=detail, given=pretty(given(task), settings), result=result)

    def take(self, name: str, value: object) -> None:  # noqa: ARG002  # there is one
        if isinstance(value, Shown) and value.task_id == self.task_id:
            self._shown = value
            self._draw(value)

    @property
    def detail(self) -> TaskDetail | None:
        """The task as it was last read; None until it has been, so that no key can hit one that is not yet seen."""
        return self._shown.detail if self._shown is not None and self._shown.task_id == self.task_id else None

    def _draw(self, shown: Shown) -> None:
        detail, desk = shown.detail, self.desk
        self.query_one("#task-head", Static).update(
            task_page.head(self.task_id, detail, back=TABS[self.tab], width=self.size.width, signs=desk.glyphs)
        )
        self.query_one(Page).display = detail is not None
        self._say(is_gone=detail is None)
        if detail is None:
            return
        self._draw_present(detail)
        self._draw_timeline(detail)
        size = len(detail.task.args_json) + len(detail.task.kwargs_json)
        title = f"Arguments ({task_page.size(size)}; | opens $PAGER, Y copies)"
        self._section("given").show(shown.given.split("\n"), title=title)
        self._section("result").show(task_page.result(detail, shown.result))

    def _draw_present(self, detail: TaskDetail) -> None:
        """What changes with time alone."""
        now, room = self.desk.clock.now(), self._room
        self._section("state").show(task_page.state(detail, now, room))
        self._section("strip").show(strip(detail, now, width=room, signs=self.desk.glyphs))

    def _draw_timeline(self, detail: TaskDetail) -> None:
        if self._has_events:
            lines = task_page.events(detail, self.desk.settings)
            self._section("timeline").show(lines, title="Events (l shows the timeline)")
        else:
            lines = task_page.timeline(detail, self._room)
            self._section("timeline").show(lines, title="Timeline (l shows the events)")

    def _section(self, name: str) -> Section:
        return self.query_one(f"#task-{name}", Section)

    @property
    def _room(self) -> int:
        """Columns between the margins."""
        return max(self.size.width - 3, 20)

    def _say(self, *, is_gone: bool) -> None:
        count = len(self._among)
        place = f"{self._among.index(self.task_id) + 1} of {count} in {TABS[self.tab]}" if count > 1 else ""
        gone = "there is no such task: retention deletes what is old" if is_gone else ""
        self.say(gone, "[ ] previous and next" if place else "", place)

    def tick(self) -> None:
        if self.detail is not None:
            self._draw_present(self.detail)

    def on_resize(self, _: events.Resize) -> None:
        if self._shown is not None and self.is_drawn:
            self._draw(self._shown)

    def on_word_line_changed(self) -> None:
        self.query_one(Page).seek(self._search.meant)
        self._find()

    def on_word_line_left(self) -> None:
        self.query_one(Page).focus()
        self._search.leave()

    def step_back(self) -> bool:
        return self._search.step_back()

    def action_filter_edit(self) -> None:
        self._search.edit()

    def action_filter_clear(self) -> None:
        self._search.clear()

    def action_find_next(self) -> None:
        self._find(1)

    def action_find_prev(self) -> None:
        self._find(-1)

    def _find(self, step: int = 0) -> None:
        if self._search.meant:
            at, count = self.query_one(Page).go_to_hit(step)
            self._search.say(f"{at} of {count}, n next" if count else "not here")

    def action_nav_prev(self) -> None:
        self._go(-1)

    def action_nav_next(self) -> None:
        self._go(1)

    def _go(self, step: int) -> None:
        at = self._among.index(self.task_id) + step
        if 0 <= at < len(self._among):
            self.task_id = self._among[at]
            self.query_one(Page).scroll_home(animate=False)
            self.desk.store.refresh("task")

    def selector(self) -> Selector | None:
        return Selector.of_ids([self.task_id]) if self.detail is not None else None

    def fitting(self) -> Action:
        is_over = self.detail is not None and TaskStatus(self.detail.task.status).is_terminal
        return Action.RETRY if is_over else Action.REQUEUE

    def settled(self, changed: Sequence[UUID]) -> None:  # noqa: ARG002  # there are no marks
        self.desk.store.refresh()

    def action_view_pager(self) -> None:
        """Arguments and result whole, but for what is masked."""
        if (detail := self.detail) is not None:
            result = {"result": detail.task.result} if detail.task.result_json is not None else {}
            text = whole({"arguments": given(detail.task), **result}, self.desk.settings)
            show_in_pager(self, text, title=short_id(detail.task.id))

    def action_nav_events(self) -> None:
        self._has_events = not self._has_events
        if self.detail is not None:
            self._draw_timeline(self.detail)

    def action_nav_owner(self) -> None:
        """What it belongs to: its run, else all tasks of its worker, else those of its queue."""
        if (detail := self.detail) is None:
            return
        task = detail.task
        if task.workflow_id is not None:
            self.post_message(RunWanted(task.workflow_id))
        elif task.worker_id is not None:
            self.post_message(TasksWanted(TaskFilter(worker_id=str(task.worker_id))))
        else:
            self.post_message(TasksWanted(TaskFilter(queues=(task.queue,))))

    def action_copy_id(self) -> None:
        self.copy(str(self.task_id), "the id")

    def action_copy_json(self) -> None:
        if (detail := self.detail) is not None:
            document = to_json(detail.task)
            masked = {key: allowed(value, self.desk.settings) for key, value in _payloads(detail).items()}
            self.copy(json.dumps({**document, **masked}, ensure_ascii=False, default=str), "as JSON")

    def action_copy_cli(self) -> None:
        self.copy(shlex.join(["horsies", "task", "show", str(self.task_id)]), "the command")


def _payloads(detail: TaskDetail) -> dict[str, object]:
    task = detail.task
    return {"args_json": task.args, "kwargs_json": task.kwargs, "result_json": task.result}
