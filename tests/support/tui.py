"""The screens without a terminal: an app over a system that stands still, and pictures to compare it with."""

from __future__ import annotations

import asyncio
import base64
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
from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver
from textual.message import Message
from textual.pilot import Pilot
from textual.strip import Strip

from horsies.model.settings import AppConfig, PostgresConfig, TuiConfig
from horsies_ops.ops import open_ops
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskOrder, TaskPage
from horsies_tui.app import HorsiesApp
from horsies_tui.data.context import DatabaseClock, StateFile
from horsies_tui.data.source import DataSource, Opener
from horsies_tui.demo import DemoOpener
from horsies_tui.demo.source import DemoSource
from horsies_tui.demo.system import DemoSystem
from horsies_tui.keys import Place
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.theme import NO_USER_THEMES, UserThemes

ALPHABET = ascii_letters + digits + punctuation

NOON = datetime(2026, 11, 14, 12, 4, 31, tzinfo=UTC)
PICTURES = Path(__file__).parents[1] / "unit" / "tui" / "pictures"


def frozen_system(size: int = 400) -> DemoSystem:
    """A busy system at noon, where no time passes; each caller has one of its own."""
    return pickle.loads(_as_bytes(size))  # noqa: S301  # our own bytes


@cache
def _as_bytes(size: int) -> bytes:
    # To invent a past takes four times as long as to read it back, and hundreds of tests want the same one.
    return pickle.dumps(DemoSystem.with_history(_noon, size=size))


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
    place: Place = Place.TASKS,
    until: str = "LIVE",
    hook: Callable[[Message], None] | None = None,
    memory: StateFile | None = None,
    themes: UserThemes = NO_USER_THEMES,
    notifies: bool = False,
) -> AsyncGenerator[Pilot[None]]:
    """The app, once its header says `until`; over a still system where no other is given."""
    opener = opener or DemoOpener(frozen_system(), pace_s=None)
    app = HorsiesApp(
        opener,
        settings or TuiConfig(),
        database_name="db1/app",
        read_only=read_only,
        start=place,
        clock=frozen_clock(),
        state_file=memory,
        themes=themes,
    )
    async with app.run_test(size=size, message_hook=hook, notifications=notifies) as pilot:
        await eventually(pilot, lambda: until in screen_text(pilot))
        await until_stable(pilot)
        yield pilot


async def eventually(pilot: Pilot[None], is_so: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Let the app work until that is the case."""
    deadline = datetime.now(UTC) + timedelta(seconds=within_s)
    while not is_so():
        assert datetime.now(UTC) < deadline, screen_text(pilot)
        await pilot.pause()


async def until_plan_dialog(pilot: Pilot[None]) -> ProposalDialog:
    """The preview, once it heeds keys."""
    await eventually(pilot, lambda: isinstance(pilot.app.screen, ProposalDialog))
    shown_now = pilot.app.screen
    assert isinstance(shown_now, ProposalDialog)
    await shown_now.keys_enabled.wait()
    return shown_now


async def until_stable(pilot: Pilot[None]) -> None:
    """Let the app work until what it shows stays the same."""
    before = ""
    while before != (before := screen_text(pilot)):
        await pilot.pause()


def screen_text(pilot: Pilot[None]) -> str:
    """What is on the screen, line by line."""
    return "\n".join(lines(pilot))


def lines(pilot: Pilot[None]) -> list[str]:
    return [strip.text for strip in _strips(pilot)]


def _strips(pilot: Pilot[None]) -> list[Strip]:
    # There is no public way to what is on the screen but an SVG, which takes long and reads badly.
    return pilot.app.screen._compositor.render_strips()


def picture(pilot: Pilot[None]) -> str:
    """The screen as text, below it the style of each character as a letter, and what the letters mean."""
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
    """Whether the screen looks as in the picture of that name; with UPDATE_PICTURES set the picture is made anew."""
    path = PICTURES / f"{name}.txt"
    now = picture(pilot)
    if os.environ.get("UPDATE_PICTURES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(now, encoding="utf-8")
    assert path.exists(), f"there is no {path.name}; UPDATE_PICTURES=1 makes it"
    assert now == path.read_text(encoding="utf-8"), f"{path.name} looks otherwise; UPDATE_PICTURES=1 makes it anew"


# The screens over a test's database, opened as `horsies tui` opens the configured one.


class DatabaseOpener:
    """Opens the database in the hands of ana."""

    def __init__(self, url: str) -> None:
        self._settings = AppConfig(broker=PostgresConfig.model_validate({"database_url": url}))

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        async with open_ops(self._settings, read_only=read_only, actor="ana", via="tui") as ops:
            yield ops


@asynccontextmanager
async def running_tui(url: str, *, place: Place = Place.TASKS, read_only: bool = False) -> AsyncGenerator[Pilot[None]]:
    app = HorsiesApp(DatabaseOpener(url), TuiConfig(), database_name="test", read_only=read_only, start=place)
    async with app.run_test(size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "LIVE" in screen_text(pilot))
        yield pilot


async def fetch_rows(url: str, sql: str, *values: object) -> list[Any]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql, *values)
    finally:
        await connection.close()


# A source whose time is over before it has looked at everything, as that of a table of millions is.

EVERYTHING = TaskFilter()
HITS = TaskFilter(names=("such.a.task",))


class TimeLimitedSource(DemoSource):
    """Looks at a few tasks a page, from either end, as if its time were over then; what is asked for by id it finds."""

    def __init__(self, system: DemoSystem, *, looks_at: int = 100) -> None:
        super().__init__(system, read_only=False, pace_s=None)
        self._looks_at = looks_at

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
        ahead = self._ahead(order, after)
        if filter.ids or len(ahead) <= self._looks_at:
            return page
        seen = ahead[: self._looks_at]
        found = tuple(task for task in page.tasks if task.id in seen)
        return page if len(found) == limit else TaskPage(tasks=found, next=seen[-1], searched_to=NOON)

    def _ahead(self, order: TaskOrder, after: UUID | None) -> list[UUID]:
        if order is TaskOrder.OLDEST_FIRST:
            return [each for each in self.system.task_ids if after is None or each > after]
        return [each for each in reversed(self.system.task_ids) if after is None or each < after]


def make_hits(system: DemoSystem, places: Iterable[int]) -> tuple[UUID, ...]:
    """Let the tasks at these places match `HITS`, the oldest being at 0; returns them, newest first."""
    hits = [system.task_ids[place] for place in places]
    system.tasks.update({each: replace(system.tasks[each], name=HITS.names[0]) for each in hits})
    return tuple(sorted(hits, reverse=True))


# What an app sends to its terminal, byte for byte, without one.

OWN = re.compile(r"\x1b\[[0-9;]*m|\n?\x1b\[[0-9;]*H|\x1b\[\?2026[hl]|\x1b\]22;[a-z-]*\x07")
"""What Textual itself sends while it draws: colours, places, the bounds of a frame, and the shape of the pointer."""


class RecordingDriver(HeadlessDriver):
    """A driver for which everything is drawn, as for a real terminal."""

    written: list[str]

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        self.written.append(data)


async def record_output(app: App[None], size: tuple[int, int], drive: Callable[[Pilot[None]], Awaitable[None]]) -> str:
    """Run the app, let it be driven, and return all that it sent."""
    written: list[str] = []
    app.driver_class = type("Recorder", (RecordingDriver,), {"written": written})

    async def then_leave(pilot: Pilot[object]) -> None:
        await drive(cast("Pilot[None]", pilot))
        app.exit()

    await app.run_async(size=size, auto_pilot=then_leave)
    return "".join(written)


def without_own_sequences(sent: str) -> str:
    """What remains are the texts alone; a control in it came from somewhere else."""
    return OWN.sub("", sent)


# A real browser without a window: it opens a page, clicks and types, and shows what it has drawn and heard.

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
    """The browser of this machine, where it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A tab of it."""

    def __init__(self, devtools: ClientWebSocketResponse) -> None:
        self.heard = b""
        """What came through the websockets of the page."""
        self._devtools = devtools
        self._calls = 0

    async def open(self, url: str) -> None:
        await self._call("Network.enable")
        await self._call("Page.enable")
        await self._call("Page.navigate", url=url)

    async def until_heard(self, *texts: bytes, within_s: float = 60.0) -> None:
        """Until the page has been sent all of these."""
        async with asyncio.timeout(within_s):
            while not all(text in self.heard for text in texts):
                self._take(await self._devtools.receive_json())

    async def click(self, x: int, y: int) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def press(self, key: str) -> None:
        await self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self) -> bytes:
        """What whoever sits there would see, as PNG."""
        return base64.b64decode((await self._call("Page.captureScreenshot", format="png"))["data"])

    async def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._calls += 1
        await self._devtools.send_json({"id": self._calls, "method": method, "params": parameters})
        while (answer := await self._devtools.receive_json()).get("id") != self._calls:
            self._take(answer)
        return answer["result"]

    def _take(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Network.webSocketFrameReceived":
            frame = told["params"]["response"]
            data = frame["payloadData"]
            self.heard += base64.b64decode(data) if frame["opcode"] == WSMsgType.BINARY else data.encode()


@asynccontextmanager
async def open_browser(program: str, folder: Path) -> AsyncGenerator[Page]:
    """A page of a browser that knows nothing but `folder`, and ends with the block."""
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
            url = next(each["webSocketDebuggerUrl"] for each in await listed.json() if each["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as devtools:
                yield Page(devtools)
    finally:
        browser.terminate()
        await browser.wait()


async def _port(said_in: Path) -> int:
    async with asyncio.timeout(60):
        # It is written by another program, which tells nobody.
        while not (said_in.exists() and said_in.read_text().count("\n")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return int(said_in.read_text().splitlines()[0])
