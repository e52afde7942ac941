"""How to reach a database: its address, and what would be session state there."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import asyncpg

from horsies.embedded.layout import is_address_of_embedded
from horsies.errors import (
    BrokerError,
    BrokerErrorCode,
    ConfigurationError,
    DatabaseUnreachable,
    ErrorCode,
    HorsiesError,
)
from horsies.log import STATEMENT_LOGGER
from horsies.version import __version__

# Times that Python cannot hold, read as the nearest that it can: one odd row must not hide all others.
#
# For connections that only read. A worker takes such rows for what they are: not due for thousands of years.

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_LONGEST: Final = timedelta(days=10**8)
_ENDLESS: Final = 2**63
"""As microseconds, minus this is the database's word for minus infinity, and one less its word for infinity."""


async def set_datetime_codec(connection: Connection) -> None:
    """Have instants and durations of this connection decoded here, where nothing is out of range."""
    for name, encoder, decoder in (
        ("timestamptz", _encode_timestamp, _decode_timestamp),
        ("interval", _encode_interval, _decode_interval),
    ):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="tuple")


def _encode_timestamp(at: datetime) -> tuple[int]:
    if at == datetime.min:  # noqa: DTZ901  # the driver's words for both ends of time
        return (-_ENDLESS,)
    if at == datetime.max:  # noqa: DTZ901
        return (_ENDLESS - 1,)
    return ((at.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1),)


def _decode_timestamp(stored: tuple[int]) -> datetime:
    (microseconds,) = stored
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LATEST if microseconds > 0 else _EARLIEST


def _encode_interval(duration: timedelta) -> tuple[int, int, int]:
    return 0, duration.days, duration.seconds * 1_000_000 + duration.microseconds


def _decode_interval(stored: tuple[int, int, int]) -> timedelta:
    months, days, microseconds = stored
    years, months = divmod(months, 12)
    days += years * 365 + months * 30
    try:
        length = timedelta(days=days, microseconds=microseconds)
    except OverflowError:
        return _LONGEST if days > 0 else -_LONGEST
    return max(-_LONGEST, min(length, _LONGEST))


# What a failure of the driver means: from SQLSTATE to what happened, what to do, and whether to ask again.

# The driver says InternalClientError when a connection dies between two steps of one statement.
LOST_CONNECTION = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)

UNIQUE_VIOLATION = "23505"

# Errors after which the same batch is simply sent again: the server chose us as the one to step back.
CONFLICT_ERRORS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class StatementFailed(BrokerError):
    """The server answered a statement with an error."""

    def __init__(self, message: str, *, sqlstate: str | None, retryable: bool, hint: str | None = None) -> None:
        super().__init__(message, code=BrokerErrorCode.MONITORING_QUERY_FAILED, retryable=retryable, hint=hint)
        self.sqlstate = sqlstate


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A server that is there and will not let us in: asking again changes nothing."""

    says: str
    hint: str


_REFUSALS = {
    "28P01": _Refusal("the server refused the password", "check the user and password in broker.database_url"),
    "28000": _Refusal(
        "the server refused the login", "check the user in broker.database_url and the server's pg_hba.conf"
    ),
    "3D000": _Refusal("the database does not exist", "create it, or correct its name in broker.database_url"),
}

_UNAVAILABLE_STATES = {
    "53300": "the server has no connection left; raise max_connections or lower broker.pool_size",
    "57P01": "the server was told to stop, or to end this connection",
    "57P02": "the server is restarting after a crash",
    "57P03": "the server is starting up",
}

_RETRYABLE_CLASSES = ("40", "53", "55", "57", "08")


def translate_error(error: BaseException, *, where: str, expects_writes: bool = False) -> HorsiesError:
    """The error of ours that says what `error` means for the database at `where` (a masked URL)."""
    if expects_writes and isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return DatabaseUnreachable(f"{where} takes no writes", hint="a standby; it will, once it is promoted")
    if isinstance(error, asyncpg.PostgresError):
        return _translate_server_error(error, where)
    if isinstance(error, TimeoutError):
        return DatabaseUnreachable(f"no answer in time from {where}", hint="is the server up, and is the network?")
    if isinstance(error, LOST_CONNECTION):
        return DatabaseUnreachable(f"cannot reach {where}: {_first_line(error)}", hint=_how_to_reach(where))
    raise error


def is_database_error(error: BaseException) -> bool:
    """Whether `explain` has something to say about it."""
    return isinstance(error, (asyncpg.PostgresError, *LOST_CONNECTION))


def _how_to_reach(where: str) -> str:
    if is_address_of_embedded(where):
        return "is the embedded server stopped? run: horsies db start"
    return "is the server up, and is the address right?"


def _translate_server_error(error: asyncpg.PostgresError, where: str) -> HorsiesError:
    state = error.sqlstate or ""
    says = _first_line(error)
    if refusal := _REFUSALS.get(state):
        return DatabaseUnreachable(f"{refusal.says}: {says} ({where})", retryable=False, hint=refusal.hint)
    if "unsupported startup parameter" in says:
        hint = "behind PgBouncer set broker.pgbouncer_transaction_mode, and broker.session_database_url to the server"
        return DatabaseUnreachable(f"{where}: {says}", retryable=False, hint=hint)
    if state in _UNAVAILABLE_STATES or state.startswith("08"):
        return DatabaseUnreachable(f"{where}: {says}", hint=_until_it_is_back(state, says))
    if state == "42P01" or (state == "42883" and "function horsies_" in says):
        return ConfigurationError(
            f"the database has no horsies tables: {says}",
            code=ErrorCode.SCHEMA_NOT_MIGRATED,
            hint="run: horsies db migrate",
        )
    hint = "grant it, or use another role in broker.database_url" if state == "42501" else None
    return StatementFailed(says, sqlstate=state, retryable=state.startswith(_RETRYABLE_CLASSES), hint=hint)


def _until_it_is_back(state: str, says: str) -> str:
    # Not up yet and no longer up are one SQLSTATE; only the words tell which.
    if state == "57P03" and "shutting down" in says:
        return "the server was told to stop; it answers again once it is started"
    return _UNAVAILABLE_STATES.get(state, "the connection was lost")


def _first_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0]


Row: TypeAlias = asyncpg.Record
IS_KNOWN_INSIDE = asyncpg.__version__.rpartition(".")[0] == "0.32"
"""Whether `bind_execute`, which the driver does not promise to anybody, is as we know it. What it saves, four steps of
Python, is about a fiftieth of a send; with any other driver we do without."""
CONNECT_TIMEOUT_S = 15.0
STATEMENT_TIMEOUT_S = 30.0

_statements = logging.getLogger(STATEMENT_LOGGER)


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

    def fetch_prepared(self, sql: str, arguments: tuple[object, ...]) -> Awaitable[list[Row]]:
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


_GENERIC_PLAN_SETTINGS = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSpec:
    """An address, and the session state that each statement there may rely on.

    `pooled` means that a transaction pooler stands in between: no connection is ours for longer than a transaction, so
    nothing is prepared and the state is set anew inside each one.
    """

    url: str = field(repr=False)
    masked_url: str
    schema: str = "public"
    is_pooled: bool = False
    read_only: bool = False
    statement_timeout_s: float | None = STATEMENT_TIMEOUT_S
    keepalive: Keepalive | None = field(default_factory=Keepalive)
    force_generic_plan: bool = False
    """A prepared statement keeps its first general plan. For the few statements of a worker, whose plans do not depend
    on their arguments: the server would plan a claim anew each time, which takes four times as long as the claim.
    No table is read whole where an index will do: claims and ends look rows up by their keys, and a plan that was made
    while a table was empty would otherwise go through thousands of rows for each of them later."""
    notifies_explicitly: bool = False
    """A statement on its own tells workers of the tasks that it stores, or knows why not: the insert trigger would only
    cost it time. In a transaction the trigger speaks."""
    echo: bool = False
    """Each statement is logged at DEBUG, without its arguments: they are other people's data."""
    application_name: str = f"horsies {__version__}"
    direct: ConnectionSpec | None = None
    """The way past the pooler, where one stands in between."""

    @property
    def logs_statements(self) -> bool:
        """Whether this link says so, or the program has asked for the statements of all links."""
        return self.echo or _statements.level == logging.DEBUG

    @property
    def session_settings(self) -> dict[str, str]:
        """Settings sent with the start of a direct connection. A pooler refuses or mixes them up, so it gets none."""
        if self.is_pooled:
            return {}
        settings = {"application_name": self.application_name, "jit": "off", **self._state}
        if self.force_generic_plan:
            settings |= _GENERIC_PLAN_SETTINGS
        if self.notifies_explicitly:
            settings |= {"horsies.announce": "off"}
        return {**settings, "default_transaction_read_only": "on"} if self.read_only else settings

    @property
    def begin_sql(self) -> str:
        """Opens a transaction in one message, with everything that must not outlive it behind a pooler."""
        opening = "BEGIN READ ONLY" if self.read_only else "BEGIN"
        if self.is_pooled:
            return opening + "".join(f"; SET LOCAL {name} = {value}" for name, value in self._state.items())
        return f"{opening}; SET LOCAL horsies.announce = 'on'" if self.notifies_explicitly else opening

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
        return {**arguments, "statement_cache_size": 0} if self.is_pooled else arguments

    def configure(self, connection: Connection) -> None:
        if self.keepalive is not None:
            connection.keep_alive(self.keepalive)
        if self.logs_statements:
            connection.add_query_logger(_log)

    async def connect(self) -> Connection:
        """A connection of the caller's own, for LISTEN or for a lock that is held; the caller closes it."""
        try:
            connection = cast("Connection", await asyncpg.connect(**self.connect_arguments))
            if self.read_only:
                await set_datetime_codec(connection)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if is_database_error(error):
                raise translate_error(error, where=self.masked_url) from error
            raise
        self.configure(connection)
        return connection


def _log(query: LoggedQuery) -> None:
    failed = {} if query.exception is None else {"failed": type(query.exception).__name__}
    _statements.debug("%s", " ".join(query.query.split()), extra={"ms": round(query.elapsed * 1000, 1), **failed})


def quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
