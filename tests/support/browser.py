"""A real browser without a window: it opens a page, clicks and types, and shows what it has drawn and heard."""

from __future__ import annotations

import asyncio
import base64
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import ClientSession, WSMsgType

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from aiohttp import ClientWebSocketResponse

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--window-size=1100,700", "--remote-debugging-port=0",
)  # fmt: skip


def installed() -> str | None:
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
async def browsing(program: str, folder: Path) -> AsyncGenerator[Page]:
    """A page of a browser that knows nothing but `folder`, and ends with the block."""
    browser = await asyncio.create_subprocess_exec(
        program, *OPTIONS, f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
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
