"""The screens in a browser: a page, and for each visitor an app of their own, in a process that ends with its page.

There is no login, so the address is that of this machine alone unless told otherwise, and pages of other sites are
turned away: a browser lets any of them knock at a local port. Nobody changes anything unless whoever serves allows it.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

from horsies.errors import ConfigurationError, ErrorCode

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
SHUTDOWN_TIMEOUT_S: Final = 5.0
"""So long apps may take to close; one that takes longer ends with us all the same (see `served`)."""


class WebServer(Server):
    """Serves `horsies tui` with these options, until SIGINT or SIGTERM."""

    def __init__(self, options: Sequence[str], *, host: str, port: int, on_ready: Callable[[str], None]) -> None:
        # In place of the shell that it is started by, so that the app is our own child.
        command = "exec " + shlex.join([sys.executable, "-m", "horsies_ops.cli", "tui", *options])
        url = f"http://{_bracket_ipv6(host)}:{port}"
        super().__init__(command, host=host, port=port, title="horsies", public_url=url)
        self._ready = on_ready
        self._sessions: set[asyncio.Task[Any]] = set()

    def initialize_logging(self) -> None:
        """Our log is set up already."""

    async def on_startup(self, app: web.Application) -> None:
        del app
        self._ready(self.public_url)

    async def on_shutdown(self, app: web.Application) -> None:
        """Ask every app to close."""
        del app
        for visit in self._sessions:
            visit.cancel()
        if self._sessions:
            await asyncio.wait(self._sessions, timeout=SHUTDOWN_TIMEOUT_S)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if not self._is_same_origin(request):
            raise web.HTTPForbidden(text="this is not for pages of other sites")
        visit = cast("asyncio.Task[Any]", asyncio.current_task())
        self._sessions.add(visit)
        try:
            return await super().handle_websocket(request)
        finally:
            self._sessions.discard(visit)

    def _is_same_origin(self, request: web.Request) -> bool:
        """Whether the page that asks is ours; programs that are no browsers name none."""
        names = {f"{_bracket_ipv6(name)}:{self.port}" for name in (*LOOPBACK_NAMES, self.host)}
        origin = request.headers.get("Origin")
        return request.host in names and (origin is None or urlsplit(origin).netloc in names)


def serve(options: Sequence[str], *, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until told to stop; `ready` gets the address of the page."""
    try:
        WebServer(options, host=host, port=port, on_ready=on_ready).serve()
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="is something else there? --port takes another",
        ) from error


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
