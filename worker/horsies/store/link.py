"""How to reach a database: its address, and what would be session state there."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import asyncpg

from horsies.log import STATEMENTS
from horsies.store.failures import explain, is_failure_of_database
from horsies.store.lenient import read_any_time
from horsies.version import __version__

Row: TypeAlias = asyncpg.Record
IS_KNOWN_INSIDE = asyncpg.__version__.rpartition(".")[0] == "0.32"
"""Whether `bind_execute`, which the driver does not promise to anybody, is as we know it. What it saves, four steps of
Python, is about a fiftieth of a send; with any other driver we do without."""
CONNECT_TIMEOUT_S = 15.0
STATEMENT_TIMEOUT_S = 30.0

_statements = logging.getLogger(STATEMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """When a silent peer is given up, on this side of a TCP connection."""

    idle_s: int = 30
    interval_s: int = 10
    count: int = 3
    user_timeout_ms: int = 30_000

    def apply_to(self, sock: socket.socket) -> None:
        if sock.family not in {socket.AF_INET, socket.AF_INET6}:
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", self.idle_s),
            ("TCP_KEEPINTVL", self.interval_s),
            ("TCP_KEEPCNT", self.count),
            ("TCP_USER_TIMEOUT", self.user_timeout_ms),
        ):
            if value and hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


if TYPE_CHECKING:
    from collections.abc import Awaitable

    from asyncpg.connection import LoggedQuery
    from asyncpg.prepared_stmt import PreparedStatement as DriverStatement

    _DriverConnection = asyncpg.Connection[Row]
    PreparedStatement = DriverStatement[Row]
else:
    _DriverConnection = asyncpg.Connection  # generic for the type checker only


class Connection(_DriverConnection):
    """A connection that can be told when to give up on a silent peer, and that keeps statements at hand."""

    __slots__ = ("_at_hand",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._at_hand: dict[str, PreparedStatement] = {}

    def fetch_often(self, sql: str, arguments: tuple[object, ...]) -> Awaitable[list[Row]]:
        """As `fetch`, for the few statements that are run thousands of times: the driver need not look for them among
        all that it has prepared, and of its steps to the server only the last is taken where we know it."""
        statement = self._at_hand.get(sql)
        if statement is None:
            return self._fetch_first(sql, arguments)
        if not IS_KNOWN_INSIDE:
            return statement.fetch(*arguments)
        # All rows, nothing beside them, no timer.
        execute = self._protocol.bind_execute  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return cast("Awaitable[list[Row]]", execute(statement._state, arguments, "", 0, False, None))  # noqa: FBT003, SLF001

    async def _fetch_first(self, sql: str, arguments: tuple[object, ...]) -> list[Row]:
        self._at_hand[sql] = statement = await self.prepare(sql)
        return await statement.fetch(*arguments)

    def keep_alive(self, keepalive: Keepalive) -> None:
        sock = self._transport.get_extra_info("socket")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        if sock is not None:
            keepalive.apply_to(sock)


_PLANNED_ONCE = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An address, and the session state that each statement there may rely on.

    `pooled` means that a transaction pooler stands in between: no connection is ours for longer than a transaction, so
    nothing is prepared and the state is set anew inside each one.
    """

    url: str = field(repr=False)
    masked_url: str
    schema: str = "public"
    pooled: bool = False
    read_only: bool = False
    statement_timeout_s: float | None = STATEMENT_TIMEOUT_S
    keepalive: Keepalive | None = field(default_factory=Keepalive)
    plans_once: bool = False
    """A prepared statement keeps its first general plan. For the few statements of a worker, whose plans do not depend
    on their arguments: the server would plan a claim anew each time, which takes four times as long as the claim.
    No table is read whole where an index will do: claims and ends look rows up by their keys, and a plan that was made
    while a table was empty would otherwise go through thousands of rows for each of them later."""
    says_itself: bool = False
    """A statement on its own tells workers of the tasks that it stores, or knows why not: the insert trigger would only
    cost it time. In a transaction the trigger speaks."""
    echo: bool = False
    """Each statement is logged at DEBUG, without its arguments: they are other people's data."""
    application_name: str = f"horsies {__version__}"
    direct: Link | None = None
    """The way past the pooler, where one stands in between."""

    @property
    def logs_statements(self) -> bool:
        """Whether this link says so, or the program has asked for the statements of all links."""
        return self.echo or _statements.level == logging.DEBUG

    @property
    def session_settings(self) -> dict[str, str]:
        """Settings sent with the start of a direct connection. A pooler refuses or mixes them up, so it gets none."""
        if self.pooled:
            return {}
        settings = {"application_name": self.application_name, "jit": "off", **self._state}
        if self.plans_once:
            settings |= _PLANNED_ONCE
        if self.says_itself:
            settings |= {"horsies.announce": "off"}
        return {**settings, "default_transaction_read_only": "on"} if self.read_only else settings

    @property
    def begin(self) -> str:
        """Opens a transaction in one message, with everything that must not outlive it behind a pooler."""
        opening = "BEGIN READ ONLY" if self.read_only else "BEGIN"
        if self.pooled:
            return opening + "".join(f"; SET LOCAL {name} = {value}" for name, value in self._state.items())
        return f"{opening}; SET LOCAL horsies.announce = 'on'" if self.says_itself else opening

    @property
    def _state(self) -> dict[str, str]:
        state = {"search_path": quoted(self.schema)}
        if self.statement_timeout_s is not None:
            # A little more than our own limit: the server's is for a client that vanished.
            state["statement_timeout"] = str(int(self.statement_timeout_s * 1000) + 1000)
        return state

    @property
    def connect_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "dsn": self.url,
            "timeout": CONNECT_TIMEOUT_S,
            "server_settings": self.session_settings,
            "connection_class": Connection,
        }
        return {**arguments, "statement_cache_size": 0} if self.pooled else arguments

    def prepare(self, connection: Connection) -> None:
        if self.keepalive is not None:
            connection.keep_alive(self.keepalive)
        if self.logs_statements:
            connection.add_query_logger(_log)

    async def connect(self) -> Connection:
        """A connection of the caller's own, for LISTEN or for a lock that is held; the caller closes it."""
        try:
            connection = cast("Connection", await asyncpg.connect(**self.connect_arguments))
            if self.read_only:
                await read_any_time(connection)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if is_failure_of_database(error):
                raise explain(error, where=self.masked_url) from error
            raise
        self.prepare(connection)
        return connection


def _log(query: LoggedQuery) -> None:
    failed = {} if query.exception is None else {"failed": type(query.exception).__name__}
    _statements.debug("%s", " ".join(query.query.split()), extra={"ms": round(query.elapsed * 1000, 1), **failed})


def quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
