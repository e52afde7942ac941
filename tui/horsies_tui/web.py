"""`horsies tui --serve`: serves the TUI to browsers. Each browser session has its own app process.

There is no login: the server binds to loopback by default, is read-only unless started otherwise, and rejects
requests from pages of other sites, because a browser lets any site connect to a local port.
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

MAX_VISITORS: Final = 8
"""Each visitor has a process of the UI."""
# No frames, which would let another site direct clicks, and no outside fonts, which would tell others of a visit.
PAGE_HEADERS: Final = {
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "font-src 'self' data:; img-src 'self' data:; connect-src 'self' ws: wss:; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
SHUTDOWN_TIMEOUT_S: Final = 5.0
"""Time for app processes to close. Those that take longer exit when they notice that the server is gone."""


class WebServer(Server):
    """Serves `horsies tui` with these options until SIGINT or SIGTERM."""

    def __init__(self, options: Sequence[str], *, host: str, port: int, on_ready: Callable[[str], None]) -> None:
        # textual-serve starts a shell; `exec` replaces it, so that the app process is our direct child.
        command = "exec " + shlex.join([sys.executable, "-m", "horsies_ops.cli", "tui", *options])
        url = f"http://{_bracket_ipv6(host)}:{port}"
        super().__init__(command, host=host, port=port, title="horsies", public_url=url)
        self._on_ready = on_ready
        self._sessions: set[asyncio.Task[Any]] = set()

    def initialize_logging(self) -> None:
        """Keep the logging configured by the CLI."""

    async def on_startup(self, app: web.Application) -> None:
        del app
        self._on_ready(self.public_url)

    async def on_shutdown(self, app: web.Application) -> None:
        """Close all browser sessions and with them their app processes."""
        del app
        for session in self._sessions:
            session.cancel()
        if self._sessions:
            await asyncio.wait(self._sessions, timeout=SHUTDOWN_TIMEOUT_S)

    async def handle_index(self, request: web.Request) -> web.Response:
        if not self._is_same_origin(request):
            raise web.HTTPForbidden(text="unknown Host or Origin")
        response = cast("web.Response", await super().handle_index(request))
        response.headers.update(PAGE_HEADERS)
        return response

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if not self._is_same_origin(request):
            raise web.HTTPForbidden(text="requests from other sites are not allowed")
        if len(self._sessions) >= MAX_VISITORS:
            raise web.HTTPServiceUnavailable(text=f"at most {MAX_VISITORS} visitors at a time")
        session = cast("asyncio.Task[Any]", asyncio.current_task())
        self._sessions.add(session)
        try:
            return await super().handle_websocket(request)
        finally:
            self._sessions.discard(session)

    def _is_same_origin(self, request: web.Request) -> bool:
        """Whether the request comes from our own page. Clients that are not browsers send no Origin."""
        names = {f"{_bracket_ipv6(name)}:{self.port}" for name in (*LOOPBACK_NAMES, self.host)}
        origin = request.headers.get("Origin")
        return request.host in names and (origin is None or urlsplit(origin).netloc in names)


def serve(options: Sequence[str], *, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until stopped; `on_ready` gets the URL of the page."""
    try:
        WebServer(options, host=host, port=port, on_ready=on_ready).serve()
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="choose another port with --port",
        ) from error


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
