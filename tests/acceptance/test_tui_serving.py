"""`horsies tui --serve`, spoken to over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from horsies_tui.web import MAX_VISITORS
from tests.support.cli import Executable, RunningCommand
from tests.support.workers import wait_for_exits

FOR_ONE_VISITOR = """
from horsies_ops.cli.main import main
from horsies_tui import web
web.MAX_VISITORS = 1
main()
"""
WITHOUT_THE_PACKAGE = """
import sys
sys.modules["textual_serve"] = None
from horsies_ops.cli.main import main
main()
"""


@pytest.fixture
def horsies(horsies: Executable, database_url: str) -> Executable:
    return replace(horsies, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


@pytest.fixture
def serving(horsies: Executable, port: int) -> Iterator[RunningCommand]:
    with horsies.start("tui", "--serve", "--port", str(port)) as at_work:
        at_work.wait_for_output("serving the TUI at")
        yield at_work


@asynccontextmanager
async def _visit(port: int, origin: str | None = None) -> AsyncGenerator[ClientWebSocketResponse]:
    headers = {} if origin is None else {"Origin": origin}
    address = f"http://127.0.0.1:{port}/ws?width=80&height=24"
    async with ClientSession() as session, session.ws_connect(address, headers=headers) as websocket:
        yield websocket


async def _drawn(websocket: ClientWebSocketResponse, *texts: bytes) -> bytes:
    """Return everything sent until all of these texts were drawn."""
    drawn = b""
    async with asyncio.timeout(30):
        async for message in websocket:
            drawn += message.data if message.type is WSMsgType.BINARY else b""
            if all(text in drawn for text in texts):
                break
    return drawn


def _apps(server: RunningCommand) -> list[psutil.Process]:
    return psutil.Process(server.popen.pid).children(recursive=True)


def _are_gone(apps: list[psutil.Process], *, within_s: float = 15.0) -> bool:
    return not wait_for_exits(apps, within_s=within_s)


async def _knock(port: int) -> None:
    """Wait until the port accepts connections."""
    deadline = time.monotonic() + 10
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def test_served_page_shows_read_only_screens(serving: RunningCommand, port: int) -> None:
    await _knock(port)
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as page:
        assert page.status == 200
        assert "horsies" in await page.text()
    async with _visit(port, f"http://localhost:{port}") as websocket:
        drawn = await _drawn(websocket, b"LIVE", b"Needs attention")
    assert b"RO" in drawn
    assert b"RW" not in drawn


async def test_closing_the_page_ends_its_app(serving: RunningCommand, port: int) -> None:
    await _knock(port)
    async with _visit(port) as websocket:
        await _drawn(websocket, b"LIVE")
        apps = _apps(serving)
        assert len(apps) == 1
    assert await asyncio.to_thread(_are_gone, apps)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
async def test_apps_end_with_their_server(serving: RunningCommand, port: int, ending: signal.Signals) -> None:
    await _knock(port)
    async with _visit(port) as websocket:
        await _drawn(websocket, b"LIVE")
        apps = _apps(serving)
        assert apps
        serving.popen.send_signal(ending)
        assert await asyncio.to_thread(_are_gone, apps)
        await asyncio.to_thread(serving.popen.wait, 15)
    assert serving.popen.returncode == (0 if ending is signal.SIGTERM else -signal.SIGKILL)


async def test_foreign_origins_are_rejected(serving: RunningCommand, port: int) -> None:
    await _knock(port)
    with pytest.raises(WSServerHandshakeError) as refused:
        async with _visit(port, "https://example.org"):
            pytest.fail("it was let in")
    assert refused.value.status == 403
    assert not _apps(serving)


async def test_read_write_option_allows_actions(horsies: Executable, port: int) -> None:
    with horsies.start("tui", "--serve", "--read-write", "--port", str(port)) as at_work:
        at_work.wait_for_output("may act")
        await _knock(port)
        async with _visit(port) as websocket:
            assert b"RW" in await _drawn(websocket, b"LIVE", b"RW")
        assert at_work.stop() == 0


def test_occupied_port_is_a_clear_error(serving: RunningCommand, horsies: Executable, port: int) -> None:
    asyncio.run(_knock(port))
    answer = horsies("tui", "--serve", "--port", str(port))
    assert answer.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_missing_package_is_named(horsies: Executable) -> None:
    program = (horsies.program[0], "-c", WITHOUT_THE_PACKAGE)
    answer = type(horsies)(cwd=horsies.cwd, environment=horsies.environment, program=program)("tui", "--serve")
    assert answer.code == 1
    assert "textual-serve" in answer.stderr
    assert "horsies-ops[web]" in answer.stderr


async def test_visitor_above_the_limit_is_refused(horsies: Executable, port: int) -> None:
    assert MAX_VISITORS == 8
    for_one = replace(horsies, program=(horsies.program[0], "-c", FOR_ONE_VISITOR))
    with for_one.start("tui", "--serve", "--port", str(port)) as at_work:
        at_work.wait_for_output("serving the TUI at")
        await _knock(port)
        async with _visit(port) as first:
            with pytest.raises(WSServerHandshakeError) as refused:
                async with _visit(port):
                    pytest.fail("it was let in")
            assert refused.value.status == 503
            assert b"LIVE" in await _drawn(first, b"LIVE")
            apps = _apps(at_work)
        assert await asyncio.to_thread(_are_gone, apps)
        await _visit_when_let_in(port)


async def _visit_when_let_in(port: int) -> None:
    """The server frees the place of a visitor after the app of that visitor has ended."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with _visit(port) as visitor:
                    assert b"LIVE" in await _drawn(visitor, b"LIVE")
            except WSServerHandshakeError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_page_forbids_frames_and_other_hosts(serving: RunningCommand, port: int) -> None:
    address = f"http://127.0.0.1:{port}/"
    await _knock(port)
    async with ClientSession() as session:
        async with session.get(address) as page:
            assert page.headers["X-Frame-Options"] == "DENY"
            assert "font-src 'self'" in page.headers["Content-Security-Policy"]
        async with session.get(address, headers={"Host": "attacker.example"}) as page:
            assert page.status == 403
