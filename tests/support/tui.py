"""The TUI in tests: an app over a frozen fake system or a test database, text pictures, terminal output, a browser."""

from __future__ import annotations

import asyncio
import base64
import codecs
import os
import pickle
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from string import ascii_letters, digits, punctuation
from typing import Any, cast
from uuid import UUID

import asyncpg
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType
from rich.cells import cell_len
from rich.segment import Segment
from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver
from textual.message import Message
from textual.pilot import Pilot
from textual.strip import Strip

from horsies.model.settings import AppConfig, PostgresConfig, TuiConfig
from horsies_ops.ops import open_ops
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskOrder, TaskPage
from horsies_ops.source import DataSource, Opener
from horsies_tui.app import HorsiesApp
from horsies_tui.data.context import DatabaseClock, StateFile
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.theme import NO_USER_THEMES, UserThemes
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem
from tests.support.terminal import Terminal

ALPHABET = ascii_letters + digits + punctuation

NOON = datetime(2026, 11, 14, 12, 4, 31, tzinfo=UTC)
PICTURES = Path(__file__).parents[1] / "unit" / "tui" / "pictures"


def frozen_system(size: int = 400) -> FakeSystem:
    """A busy fake system whose clock stands at noon; a new copy for each caller."""
    return pickle.loads(_pickled_system(size))  # noqa: S301  # our own bytes


@cache
def _pickled_system(size: int) -> bytes:
    # Building the history takes four times as long as unpickling it, and hundreds of tests need it.
    return pickle.dumps(FakeSystem.with_history(_noon, size=size))


def _noon() -> datetime:
    return NOON


def frozen_clock() -> DatabaseClock:
    return DatabaseClock(monotonic=lambda: 0.0, local=lambda: NOON)


@asynccontextmanager
async def running_app(
    opener: Opener | None = None,
    *,
    settings: TuiConfig | None = None,
    size: tuple[int, int] = (80, 24),
    read_only: bool = False,
    screen_id: ScreenId = ScreenId.TASKS,
    until: str = "LIVE",
    hook: Callable[[Message], None] | None = None,
    memory: StateFile | None = None,
    themes: UserThemes = NO_USER_THEMES,
    notifies: bool = False,
    caption_file: Path | None = None,
) -> AsyncGenerator[Pilot[None]]:
    """Run the app and wait until the screen shows `until`; by default over a frozen system."""
    opener = opener or FakeOpener(frozen_system())
    app = HorsiesApp(
        opener,
        settings or TuiConfig(),
        database_name="db1/app",
        read_only=read_only,
        start=screen_id,
        clock=frozen_clock(),
        state_file=memory,
        themes=themes,
        caption_file=caption_file,
    )
    async with app.run_test(size=size, message_hook=hook, notifications=notifies) as pilot:
        await eventually(pilot, lambda: until in screen_text(pilot))
        await until_stable(pilot)
        yield pilot


async def eventually(pilot: Pilot[None], condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Let the app run until the condition is true."""
    deadline = datetime.now(UTC) + timedelta(seconds=within_s)
    while not condition():
        assert datetime.now(UTC) < deadline, screen_text(pilot)
        await pilot.pause()


async def until_plan_dialog(pilot: Pilot[None]) -> ProposalDialog:
    """Wait for the proposal dialog until it accepts keys."""
    await eventually(pilot, lambda: isinstance(pilot.app.screen, ProposalDialog))
    dialog = pilot.app.screen
    assert isinstance(dialog, ProposalDialog)
    await dialog.keys_enabled.wait()
    return dialog


async def until_stable(pilot: Pilot[None]) -> None:
    """Let the app run until the screen stops changing."""
    previous = ""
    while previous != (previous := screen_text(pilot)):
        await pilot.pause()


def screen_text(pilot: Pilot[None]) -> str:
    """The text of the screen."""
    return "\n".join(lines(pilot))


def lines(pilot: Pilot[None]) -> list[str]:
    return [strip.text for strip in _strips(pilot)]


def _strips(pilot: Pilot[None]) -> list[Strip]:
    # The only public export of the screen is an SVG, which is slow and hard to compare.
    return pilot.app.screen._compositor.render_strips()


def rendered_segments(pilot: Pilot[None]) -> list[Segment]:
    """All parts of the screen with their styles, as written to the terminal."""
    return [segment for strip in _strips(pilot) for segment in strip]


def picture(pilot: Pilot[None]) -> str:
    """The screen as text, then a letter for the style of each character, then a legend of the letters."""
    letters: dict[str, str] = {}
    styles: list[str] = []
    for strip in _strips(pilot):
        line = ""
        for text, style, _ in strip:
            letter = letters.setdefault(str(style), ALPHABET[len(letters)])
            line += letter * cell_len(text)
        styles.append(line)
    legend = [f"{letter} {style}" for style, letter in letters.items()]
    return "\n".join([*(line.rstrip() for line in lines(pilot)), "", *styles, "", *legend, ""])


def assert_matches_picture(pilot: Pilot[None], name: str) -> None:
    """Assert that the screen equals the stored picture; UPDATE_PICTURES=1 rewrites it."""
    path = PICTURES / f"{name}.txt"
    actual = picture(pilot)
    if os.environ.get("UPDATE_PICTURES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    assert path.exists(), f"{path.name} does not exist; create it with UPDATE_PICTURES=1"
    assert actual == path.read_text(encoding="utf-8"), f"{path.name} differs; update it with UPDATE_PICTURES=1"


# The TUI over a test database


class DatabaseOpener:
    """Opens a test database as operator ana."""

    def __init__(self, url: str) -> None:
        self._settings = AppConfig(broker=PostgresConfig.model_validate({"database_url": url}))

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        async with open_ops(self._settings, read_only=read_only, actor="ana", via="tui") as ops:
            yield ops


@asynccontextmanager
async def running_tui(
    url: str, *, screen_id: ScreenId = ScreenId.TASKS, read_only: bool = False
) -> AsyncGenerator[Pilot[None]]:
    app = HorsiesApp(DatabaseOpener(url), TuiConfig(), database_name="test", read_only=read_only, start=screen_id)
    async with app.run_test(size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "LIVE" in screen_text(pilot))
        yield pilot


async def fetch_rows(url: str, sql: str, *values: object) -> list[Any]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql, *values)
    finally:
        await connection.close()


# A source whose searches time out, as on a table with millions of rows

EVERYTHING = TaskFilter()
HITS = TaskFilter(names=("such.a.task",))


class TimeLimitedSource(FakeSource):
    """Searches only `rows_per_page` tasks per page, as if it then timed out; lookups by id always succeed."""

    def __init__(self, system: FakeSystem, *, rows_per_page: int = 100) -> None:
        super().__init__(system, read_only=False)
        self._rows_per_page = rows_per_page

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:  # noqa: ARG002
        yield self

    async def list_tasks(
        self,
        filter: TaskFilter = EVERYTHING,  # noqa: A002
        *,
        order: TaskOrder = TaskOrder.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        page = await super().list_tasks(filter, order=order, after=after, limit=limit)
        remaining = self._remaining_ids(order, after)
        if filter.ids or len(remaining) <= self._rows_per_page:
            return page
        searched = remaining[: self._rows_per_page]
        found = tuple(task for task in page.tasks if task.id in searched)
        return page if len(found) == limit else TaskPage(tasks=found, next=searched[-1], searched_to=NOON)

    def _remaining_ids(self, order: TaskOrder, after: UUID | None) -> list[UUID]:
        if order is TaskOrder.OLDEST_FIRST:
            return [task_id for task_id in self.system.task_ids if after is None or task_id > after]
        return [task_id for task_id in reversed(self.system.task_ids) if after is None or task_id < after]


def make_hits(system: FakeSystem, indexes: Iterable[int]) -> tuple[UUID, ...]:
    """Make the tasks at these indexes (0 is the oldest) match `HITS`; returns their ids, newest first."""
    hits = [system.task_ids[index] for index in indexes]
    system.tasks.update({task_id: replace(system.tasks[task_id], name=HITS.names[0]) for task_id in hits})
    return tuple(sorted(hits, reverse=True))


# Terminal output

TEXTUAL_SEQUENCES = re.compile(r"\x1b\[[0-9;]*m|\n?\x1b\[[0-9;]*H|\x1b\[\?2026[hl]|\x1b\]22;[a-z-]*\x07")
"""Escape sequences that Textual itself sends: colours, cursor positions, frame bounds and the pointer shape."""


class RecordingDriver(HeadlessDriver):
    """A driver that draws everything, as for a real terminal, and records it."""

    written: list[str]

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        self.written.append(data)


async def record_output(app: App[None], size: tuple[int, int], drive: Callable[[Pilot[None]], Awaitable[None]]) -> str:
    """Run the app with `drive` and return everything it wrote to the terminal."""
    written: list[str] = []
    app.driver_class = type("Recorder", (RecordingDriver,), {"written": written})

    async def drive_and_exit(pilot: Pilot[object]) -> None:
        await drive(cast("Pilot[None]", pilot))
        app.exit()

    await app.run_async(size=size, auto_pilot=drive_and_exit)
    return "".join(written)


def without_own_sequences(output: str) -> str:
    """Output without Textual's own sequences; a remaining control character came from the shown data."""
    return TEXTUAL_SEQUENCES.sub("", output)


# A headless browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--window-size=1100,700",
    "--remote-debugging-port=0",
)


def find_browser() -> str | None:
    """Path of an installed browser, if any."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A browser tab, controlled through the DevTools protocol."""

    def __init__(self, devtools: ClientWebSocketResponse) -> None:
        self._terminal = Terminal(200, 70)
        """What the page draws, from the data that its websockets have received."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._devtools = devtools
        self._calls = 0

    async def open(self, url: str) -> None:
        await self._call("Network.enable")
        await self._call("Page.enable")
        await self._call("Page.navigate", url=url)

    async def wait_for_text(self, *texts: str, within_s: float = 60.0) -> None:
        """Wait until the page shows all of these."""
        async with asyncio.timeout(within_s):
            while not all(text in self._terminal.text for text in texts):
                self._record(await self._devtools.receive_json())

    async def click(self, x: int, y: int) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def press(self, key: str) -> None:
        await self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self) -> bytes:
        """A screenshot as PNG."""
        return base64.b64decode((await self._call("Page.captureScreenshot", format="png"))["data"])

    async def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._calls += 1
        await self._devtools.send_json({"id": self._calls, "method": method, "params": parameters})
        while (answer := await self._devtools.receive_json()).get("id") != self._calls:
            self._record(answer)
        return answer["result"]

    def _record(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Network.webSocketFrameReceived":
            frame = message["params"]["response"]
            if frame["opcode"] == WSMsgType.BINARY:  # others are messages between the page and the server
                self._terminal.feed(self._decoder.decode(base64.b64decode(frame["payloadData"])))


@asynccontextmanager
async def open_browser(program: str, folder: Path) -> AsyncGenerator[Page]:
    """Start a browser with its profile in `folder` and yield a page; it is terminated at the end."""
    browser = await asyncio.create_subprocess_exec(
        program,
        *OPTIONS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/json/list") as listed:
            url = next(tab["webSocketDebuggerUrl"] for tab in await listed.json() if tab["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as devtools:
                yield Page(devtools)
    finally:
        browser.terminate()
        await browser.wait()


async def _port(port_file: Path) -> int:
    async with asyncio.timeout(60):
        # The browser writes the file; it can only be polled.
        while not (port_file.exists() and port_file.read_text().count("\n")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return int(port_file.read_text().splitlines()[0])
