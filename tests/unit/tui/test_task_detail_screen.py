from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from textual.message import Message
from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskRecord
from horsies_tui.keys import ACTIONS, SharedScope, actions_in
from horsies_tui.screens.base import OpenTask, ShowRun, ShowTasks
from horsies_tui.screens.tasks.detail import TaskDetailScreen
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.screens.workflows import WorkflowsScreen
from horsies_tui.widgets.page import Page, Section
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.catalog import KINDS, KINDS_BY_NAME, LOST_WORKER
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import (
    NOON,
    assert_matches_picture,
    eventually,
    frozen_system,
    lines,
    running_app,
    screen_text,
    until_plan_dialog,
    until_stable,
)


def _stale(system: FakeSystem) -> TaskRecord:
    """Return the task of a lost worker, in its second attempt."""
    running = system.in_state(TaskStatus.RUNNING)
    return next(task for task in running if (task.worker_id, task.attempt_count) == (LOST_WORKER.worker_id, 1))


async def _open(pilot: Pilot[None], task_id: UUID, sibling_ids: Sequence[UUID] = ()) -> TaskDetailScreen:
    pilot.app.screen.post_message(OpenTask(task_id, tuple(sibling_ids)))
    await eventually(
        pilot, lambda: isinstance(pilot.app.screen, TaskDetailScreen) and pilot.app.screen.detail is not None
    )
    await until_stable(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, TaskDetailScreen)
    return screen


async def test_enter_opens_task_and_esc_closes_it() -> None:
    async with running_app() as pilot:
        tasks = pilot.app.screen
        assert isinstance(tasks, TasksScreen)
        await pilot.press("j", "enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TaskDetailScreen))
        assert isinstance(pilot.app.screen, TaskDetailScreen)
        assert pilot.app.screen.task_id == tasks.list.rows[1].id
        await pilot.press("escape")
        await eventually(pilot, lambda: pilot.app.screen is tasks)


async def test_stale_task_shows_silence_and_recovery_decision() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        await _open(pilot, _stale(system).id)
        assert "✖ STALE" in lines(pilot)[2]
        assert "silent" in screen_text(pilot)
        assert "┄┄┄┄" in screen_text(pilot)
        assert "Who runs it?" in screen_text(pilot)
        assert "last heartbeat 11m20s ago, one is due every 30s" in screen_text(pilot)
        assert "with the next sweep: retry, attempt" in screen_text(pilot)


async def test_pending_task_shows_why_it_waits() -> None:
    system = frozen_system()
    mail = KINDS_BY_NAME["mail.send"]
    _, pending = system.send(mail, at=NOON - timedelta(seconds=9)), system.send(mail, at=NOON)
    source = FakeSource(system, read_only=False)
    await source.pause_queue("mail", reason="[/red] smtp down")
    async with running_app(FakeOpener(system), size=(80, 40)) as pilot:
        await _open(pilot, pending.id, (pending.id, _stale(system).id))
        assert "Why is it waiting?" in screen_text(pilot)
        assert "queue mail is paused by" in screen_text(pilot)
        assert ": [/red] smtp down" in screen_text(pilot)
        assert "ahead of it" in screen_text(pilot)
        await source.resume_queue("mail")
        await pilot.press("r")
        await eventually(pilot, lambda: "is paused by" not in screen_text(pilot))
        await pilot.press("right_square_bracket")
        await eventually(pilot, lambda: "STALE" in screen_text(pilot))
        assert "Why is it waiting?" not in screen_text(pilot)


async def test_search_highlights_and_scrolls_to_hits() -> None:
    system = frozen_system()
    task_id = next(task.id for task in system.tasks.values() if task.name == "mail.send")
    async with running_app(FakeOpener(system), size=(80, 15)) as pilot:
        screen = await _open(pilot, task_id)
        page = screen.query_one(Page)
        assert "ada@example.org" not in screen_text(pilot)
        await pilot.press("slash", *"ADA@example", "enter")
        await eventually(pilot, lambda: "ada@example.org" in screen_text(pilot))
        assert page.has_focus
        await pilot.press("slash", *["backspace"] * 11, *"mail", "enter")
        await eventually(pilot, lambda: "Search ▸ mail" in screen_text(pilot) and "1 of " in screen_text(pilot))
        await pilot.press("N")
        count = len([hit for section in page.query(Section) for hit in section.hits])
        await eventually(pilot, lambda: f"{count} of {count}" in screen_text(pilot))
        await pilot.press("n")
        await eventually(pilot, lambda: f"1 of {count}" in screen_text(pilot))
        await pilot.press("escape")
        await eventually(pilot, lambda: "Search" not in screen_text(pilot))
        assert isinstance(pilot.app.screen, TaskDetailScreen)


async def test_secrets_are_redacted_on_screen_and_in_copies() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), size=(80, 40)) as pilot:
        screen = await _open(pilot, next(task.id for task in system.tasks.values() if task.name == "mail.send"))
        assert '"api_token": "••••••"' in screen_text(pilot)
        screen.action_copy_json()
        assert "ada@example.org" in pilot.app.clipboard
        assert "s3cret" not in pilot.app.clipboard


async def test_arguments_are_hidden_by_setting() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), settings=TuiConfig(show_args="never")) as pilot:
        await _open(pilot, next(task.id for task in system.tasks.values() if task.name == "mail.send"))
        assert "ada@example.org" not in screen_text(pilot)


async def test_brackets_walk_through_list_as_of_opening() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        sibling_ids = system.task_ids[-3:]
        screen = await _open(pilot, sibling_ids[0], sibling_ids)
        assert "1 of 3" in lines(pilot)[-2]
        system.send(KINDS[0])
        await pilot.press("right_square_bracket", "right_square_bracket", "right_square_bracket")
        await eventually(pilot, lambda: "3 of 3" in lines(pilot)[-2])
        assert screen.task_id == sibling_ids[2]
        await pilot.press("left_square_bracket")
        await eventually(pilot, lambda: "2 of 3" in lines(pilot)[-2])
        assert str(sibling_ids[1]) in lines(pilot)[2]


async def test_actions_need_a_task_on_screen() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), notifies=True) as pilot:
        screen = await _open(pilot, system.task_ids[-1], system.task_ids[-2:])
        screen.task_id = system.task_ids[-2]
        await pilot.press("F")
        await eventually(pilot, lambda: "no row selected" in screen_text(pilot))
        assert pilot.app.screen is screen


async def test_failed_task_can_be_retried() -> None:
    system = frozen_system()
    failed = next(task for task in system.in_state(TaskStatus.FAILED) if task.workflow_id is None)
    async with running_app(FakeOpener(system)) as pilot:
        screen = await _open(pilot, failed.id)
        before = len(system.tasks)
        await pilot.press("R")
        await until_plan_dialog(pilot)
        assert "Retry 1 task" in screen_text(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 1" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: pilot.app.screen is screen)
        assert len(system.tasks) == before + 1


async def test_read_only_disables_all_actions() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), read_only=True) as pilot:
        screen = await _open(pilot, system.task_ids[-1])
        for action in ACTIONS:
            if action.mutates and SharedScope.TASK in action.scopes:
                await pilot.press(*action.keys)
                assert pilot.app.screen is screen


async def test_owner_key_opens_workflow_run() -> None:
    system, messages = frozen_system(), list[Message]()
    task = next(task for task in system.tasks.values() if task.workflow_id is not None)
    async with running_app(FakeOpener(system), hook=messages.append) as pilot:
        await _open(pilot, task.id)
        await pilot.press("o")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, WorkflowsScreen))
        shown = next(message for message in messages if isinstance(message, ShowRun))
        assert shown.workflow_id == task.workflow_id
        workflows = pilot.app.screen
        assert isinstance(workflows, WorkflowsScreen)
        await eventually(pilot, lambda: workflows.detail is not None and workflows.detail.run.id == task.workflow_id)


async def test_owner_key_lists_tasks_of_worker() -> None:
    system, messages = frozen_system(), list[Message]()
    async with running_app(FakeOpener(system), hook=messages.append) as pilot:
        stale = _stale(system)
        await _open(pilot, stale.id)
        await pilot.press("o")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TasksScreen))
        shown = next(message for message in messages if isinstance(message, ShowTasks))
        assert shown.filter == TaskFilter(worker_id=str(stale.worker_id))


async def test_l_toggles_events_and_timeline() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        await _open(pilot, _stale(system).id)
        assert "#2 started" in screen_text(pilot)
        await pilot.press("l")
        assert "Events" in screen_text(pilot)
        assert "task_retry" in screen_text(pilot)


async def test_deleted_task_is_reported() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        deleted = system.send(KINDS[0]).id
        await _open(pilot, deleted)
        del system.tasks[deleted]
        await pilot.press("r")
        await eventually(pilot, lambda: "task not found" in screen_text(pilot))


async def test_huge_arguments_are_truncated() -> None:
    system = frozen_system(20)
    big = system.send(KINDS[0], kwargs_json='{"text": "' + "x" * 2_000_000 + '"}').id
    async with running_app(FakeOpener(system)) as pilot:
        await _open(pilot, big)
        assert "1.9 MiB" in screen_text(pilot) or "2 MiB" in screen_text(pilot)


async def test_arguments_cannot_inject_controls_or_markup() -> None:
    system = frozen_system(20)
    evil = system.send(KINDS[0], at=NOON, kwargs_json='{"[/red]": "\\u001b]52;c;aGk=\\u0007 \\u009b31m \\u202e"}').id
    async with running_app(FakeOpener(system)) as pilot:
        await _open(pilot, evil)
        assert "[/red]" in screen_text(pilot)
        assert not set(screen_text(pilot)) & set("\x1b\x07\x9b\u202e")


def test_every_action_has_a_method() -> None:
    for action in actions_in(SharedScope.TASK):
        assert callable(getattr(TaskDetailScreen, f"action_{action.method}", None)), action.id


async def test_detail_matches_picture() -> None:
    system = frozen_system()
    for width, height in ((80, 24), (120, 36)):
        async with running_app(FakeOpener(system), size=(width, height)) as pilot:
            await _open(pilot, _stale(system).id)
            assert_matches_picture(pilot, f"task-{width}")
