"""A malformed row costs at most the cell or the pane that shows it, never the app."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from horsies.model.task import TaskStatus
from horsies_ops.reads.tasks import TaskRecord
from horsies_ops.reads.workers import WorkerRow
from horsies_ops.source import DataSource
from horsies_tui.keys import ScreenId
from horsies_tui.screens.tasks.detail import TaskDetailScreen
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Tone
from tests.support.fake_system.catalog import KINDS
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import NOON, eventually, frozen_system, running_app, screen_text, until_stable

MALFORMED = {
    "list": "[]",
    "digits": '{"number": ' + "7" * 5_000 + "}",
    "nesting": '{"a": ' * 1_200 + "1" + "}" * 1_200,
    "deep enough for the parser": '{"a": ' * 700 + "1" + "}" * 700,
    "text": "not JSON",
}


def _with_malformed_task(text: str) -> tuple[FakeSystem, TaskRecord]:
    system = FakeSystem(lambda: NOON)
    fields = {"args_json": text, "kwargs_json": text, "result_json": text, "flags_json": text, "options_json": text}
    return system, system.send(KINDS[0], at=NOON, status=TaskStatus.FAILED, finished_at=NOON, **fields)


@asynccontextmanager
async def _running(source: FakeSource, **options: object) -> AsyncGenerator[Pilot[None]]:
    @asynccontextmanager
    async def opener(*, read_only: bool) -> AsyncGenerator[DataSource]:
        yield source

    async with running_app(opener, **options) as pilot:  # pyright: ignore[reportArgumentType]
        yield pilot


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_json_is_shown_as_unreadable(text: str) -> None:
    system, task = _with_malformed_task(text)
    async with _running(FakeSource(system, read_only=False), size=(160, 50)) as pilot:
        await eventually(pilot, lambda: str(task.id)[-8:] in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TaskDetailScreen))
        await eventually(pilot, lambda: "Result" in screen_text(pilot))
        await pilot.press("l", "Y", "y")
        await until_stable(pilot)
        assert "sent" in screen_text(pilot) or "no recorded events" in screen_text(pilot)
        assert "Traceback" not in screen_text(pilot)
        assert pilot.app.return_code is None


async def test_malformed_event_and_audit_entry_do_not_hide_the_others() -> None:
    system = frozen_system()
    system.events[-1] = replace(system.events[-1], evidence_json="[]")
    system.events[-2] = replace(system.events[-2], evidence_json="{")
    system.audit_log[-1] = replace(system.audit_log[-1], filter_json="[1]")
    async with _running(FakeSource(system, read_only=False), screen_id=ScreenId.EVENTS, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "worker lost" in screen_text(pilot) and "sweep finished" in screen_text(pilot))
        await pilot.press("1")
        await eventually(pilot, lambda: "41 changed" in screen_text(pilot))


class BrokenWorkers(FakeSource):
    """Workers whose number of processes is text, which the sum in the status line does not expect."""

    async def list_active_workers(self, threshold: timedelta | None = None) -> tuple[WorkerRow, ...]:
        rows = await super().list_active_workers(threshold)
        return tuple(replace(row, processes="many") for row in rows)  # pyright: ignore[reportArgumentType]


async def test_exception_while_drawing_costs_that_part_only() -> None:
    source = BrokenWorkers(frozen_system(), read_only=False)
    async with _running(source, screen_id=ScreenId.WORKERS, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "workers cannot be shown: TypeError" in screen_text(pilot))
        assert "host-1:901" in screen_text(pilot)
        await pilot.press("2")
        await eventually(pilot, lambda: "critical" in screen_text(pilot))


def test_exception_in_a_cell_costs_that_cell_only() -> None:
    column = Column[str]("SIZE", 5, lambda text: str(1 / len(text)))
    assert (column.cell("", NOON), column.cell("x", NOON).text) == (Cell("?", Tone.BAD), "1.0")


class TwoPanes(App[None]):
    def compose(self) -> ComposeResult:
        yield Pane("left", name="left")
        yield Pane("right", name="right")


async def test_exception_in_a_pane_costs_that_pane_only() -> None:
    async with TwoPanes().run_test(size=(80, 10)) as pilot:
        left, right = pilot.app.query(Pane)
        left.show(lambda: [str(1 / 0)])
        right.show(lambda: ["still here"])
        await eventually(pilot, lambda: "still here" in screen_text(pilot))
        assert "ZeroDivisionError" in screen_text(pilot)
