"""Control sequences in any field of a task never reach the terminal."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies.model.task import TaskAttemptInfo, TaskAttemptOutcome, TaskStatus
from horsies_ops.reads.tasks import TaskDetail
from horsies_ops.source import DataSource
from horsies_tui.app import HorsiesApp
from horsies_tui.keys import ScreenId
from horsies_tui.screens.tasks.detail import TaskDetailScreen
from tests.support.fake_system.catalog import KINDS
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import (
    NOON,
    eventually,
    frozen_clock,
    record_output,
    screen_text,
    until_stable,
    without_own_sequences,
)

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
HOSTILE = (
    "\x1b[2J",
    "\x1b]52;c;aGk=\x07",
    "\x1b]0;title\x1b\\",
    "\x1bc",
    "\x1b[31;5m",
    "\x9b31m",
    "\x9d52;c;aGk=\x9c",
    "\x07",
    "\x08",
    "\r",
    "\n",
    "\t",
    "\x0e",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u200b",
    "\ud800",
    "[/red]",
    "[bold",
    "list[/foo]",
    "[@click=app.exit]x[/]",
    "\\[",
    "漢",
    "e\u0301",
    "\U0001f468\u200d\U0001f469",
)
"""Control sequences, bidi marks and text that looks like markup."""

texts = st.lists(st.sampled_from(HOSTILE) | st.text(st.characters(), max_size=4), min_size=1, max_size=6).map("".join)


class HostileSource(FakeSource):
    """A system whose tasks and attempts carry hostile text in every field."""

    def __init__(self, texts: list[str]) -> None:
        system = FakeSystem(lambda: NOON)
        for text in texts:
            system.send(
                KINDS[0],
                name=text,
                queue=text,
                error_code=text,
                failed_reason=text,
                worker_hostname=text,
                status=TaskStatus.FAILED,
                claimed_at=NOON,
                started_at=NOON,
                finished_at=NOON,
                attempt_count=0,
                kwargs_json=json.dumps({text: [text]}),
                args_json=json.dumps([text]),
                result_json=json.dumps({"err": text}),
                no_restart=text,
                idempotency_key=text,
                options_json=json.dumps({text: text}),
                flags_json=json.dumps({text: True}),
            )
        super().__init__(system, read_only=False)

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        detail = await super().task(task_id)
        if detail is None:
            return None
        text = detail.task.name
        attempt = TaskAttemptInfo(
            task_id=str(detail.task.id),
            attempt=1,
            claim_token=1,
            outcome=TaskAttemptOutcome.FAILED,
            will_retry=False,
            started_at=NOON - timedelta(minutes=1),
            finished_at=NOON,
            error_code=text,
            error_message=text,
            failed_reason=text,
            worker_id=None,
            worker_hostname=text,
            worker_pid=1,
            worker_process_name=text,
        )
        return replace(detail, attempts=(attempt,))


async def _open_first_task(pilot: Pilot[None]) -> None:
    """Show the list with its preview, then open the first task."""
    await eventually(pilot, lambda: "FAILED" in screen_text(pilot))
    await until_stable(pilot)
    await pilot.press("enter")
    await eventually(pilot, lambda: isinstance(pilot.app.screen, TaskDetailScreen))
    await until_stable(pilot)


@settings(max_examples=10, deadline=None)
@given(st.lists(texts, min_size=1, max_size=10))
@example([*HOSTILE])
def test_control_sequences_in_values_never_reach_terminal(values: list[str]) -> None:
    @asynccontextmanager
    async def opener(*, read_only: bool) -> AsyncGenerator[DataSource]:
        yield HostileSource(values)

    # Wide enough for the facet sidebar, argument previews and the preview pane.
    app = HorsiesApp(opener, TuiConfig(), database_name="db1/app", start=ScreenId.TASKS, clock=frozen_clock())
    sent = asyncio.run(record_output(app, (170, 40), _open_first_task))
    assert "FAILED" in sent
    assert re.findall(f".{{0,20}}(?:{CONTROLS.pattern}).{{0,20}}", without_own_sequences(sent)) == []
    assert "\x1b[31;5m" not in sent
