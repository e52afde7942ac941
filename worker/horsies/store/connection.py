"""Connections: address and session settings, driver errors as HorsiesErrors, and a lenient datetime codec."""

from __future__ import annotations

import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from horsies.embedded.layout import is_embedded_url
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

Row: TypeAlias = asyncpg.Record
CONNECT_TIMEOUT_S = 15.0
MIN_CONNECT_TIMEOUT_S = 1.0
STATEMENT_TIMEOUT_S = 30.0

_GENERIC_PLAN_SETTINGS = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}

_statement_logger = logging.getLogger(STATEMENT_LOGGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """TCP keepalive settings of our side of a connection."""

    idle_s: int = 30
    interval_s: int = 10
    count: int = 3
    user_timeout_ms: int = 30_000

    def apply_to(self, sock: socket.socket) -> None:
        if sock.family not in {socket.AF_INET, socket.AF_INET6}:
            return  # a Unix socket fails at once when the other side is gone
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", self.idle_s),
            ("TCP_KEEPINTVL", self.interval_s),
            ("TCP_KEEPCNT", self.count),
            ("TCP_USER_TIMEOUT", self.user_timeout_ms),
        ):
            # Not every platform has all of them: TCP_USER_TIMEOUT exists only on Linux.
            if value and hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


if TYPE_CHECKING:
    from asyncpg.connection import LoggedQuery

    _DriverConnection = asyncpg.Connection[Row]
else:
    _DriverConnection = asyncpg.Connection  # generic for the type checker only


class Connection(_DriverConnection):
    """A driver connection that can apply TCP keepalive settings to its socket."""

    __slots__ = ("_sock",)

    def __init__(self, *arguments: Any) -> None:
        """Keep the socket: the driver has no method for it, but gives the transport to the class of its connections."""
        super().__init__(*arguments)
        transports = (argument for argument in arguments if hasattr(argument, "get_extra_info"))
        self._sock: socket.socket = next(transports).get_extra_info("socket")

    def keep_alive(self, keepalive: Keepalive) -> None:
        keepalive.apply_to(self._sock)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSpec:
    """Address and session settings of connections to one database.

    With `is_pooled` there is a transaction pooler in between: a server connection is ours for one transaction only, so
    no statement is prepared and the settings are sent at the start of each transaction.
    """

    url: str = field(repr=False)
    masked_url: str
    schema: str = "public"
    is_pooled: bool = False
    read_only: bool = False
    statement_timeout_s: float | None = STATEMENT_TIMEOUT_S
    keepalive: Keepalive | None = field(default_factory=Keepalive)
    force_generic_plan: bool = False
    """Plan each prepared statement once and never use sequential scans.

    For statements of workers, schedulers and clients, whose plans do not depend on their arguments: planning a claim
    takes four times as long as executing it. Without sequential scans a plan made on empty tables still uses indexes
    when the tables have grown.
    """
    echo: bool = False
    """Log each statement at DEBUG, without its arguments, which may hold private data."""
    application_name: str = f"horsies {__version__}"
    direct_url: str | None = field(default=None, repr=False)
    """Address past the pooler; None if it is the same."""
    masked_direct_url: str | None = None

    @property
    def direct(self) -> ConnectionSpec:
        """How to connect past any pooler, for LISTEN, migrations and locks."""
        return replace(
            self,
            url=self.direct_url or self.url,
            masked_url=self.masked_direct_url or self.masked_url,
            is_pooled=False,
        )

    @property
    def session_settings(self) -> dict[str, str]:
        """Settings sent when a direct connection opens; empty for a pooler, which rejects or mixes them up."""
        if self.is_pooled:
            return {}
        # JIT compilation would take longer than our short statements.
        settings = {"application_name": self.application_name, "jit": "off", **self._required_settings}
        if self.force_generic_plan:
            settings |= _GENERIC_PLAN_SETTINGS
        return {**settings, "default_transaction_read_only": "on"} if self.read_only else settings

    @property
    def begin_sql(self) -> str:
        """Begins a transaction in one message; behind a pooler also sets its settings."""
        opening = "BEGIN READ ONLY" if self.read_only else "BEGIN"
        if self.is_pooled:
            return opening + "".join(f"; SET LOCAL {name} = {value}" for name, value in self._required_settings.items())
        return opening

    @property
    def _required_settings(self) -> dict[str, str]:
        settings = {"search_path": quote_identifier(self.schema)}
        if self.statement_timeout_s is not None:
            # A little longer than our own timeout: the server's is for clients that have vanished.
            limit_ms = str(int(self.statement_timeout_s * 1000) + 1000)
            # The second ends a transaction whose client vanished between two statements, and frees its locks.
            settings |= {"statement_timeout": limit_ms, "idle_in_transaction_session_timeout": limit_ms}
        return settings

    async def connect(self) -> Connection:
        """Open a connection; the caller closes it. Its statements time out after `statement_timeout_s`."""
        # No longer than a statement: heartbeats with a short statement timeout must not wait for a lost answer here.
        timeout_s = min(CONNECT_TIMEOUT_S, max(MIN_CONNECT_TIMEOUT_S, self.statement_timeout_s or CONNECT_TIMEOUT_S))
        with translated_errors(self.masked_url):
            connection = await asyncpg.connect(
                self.url,
                timeout=timeout_s,
                command_timeout=self.statement_timeout_s,
                server_settings=self.session_settings,
                connection_class=Connection,
                # A cached statement lives in one server session, and a pooler changes sessions between transactions.
                statement_cache_size=0 if self.is_pooled else 100,
            )
            if self.read_only:
                try:
                    await set_datetime_codec(connection)
                except BaseException:  # the caller does not have the connection yet
                    connection.terminate()
                    raise
        if self.keepalive is not None:
            connection.keep_alive(self.keepalive)
        if self.echo or _statement_logger.level == logging.DEBUG:
            connection.add_query_logger(_log_statement)
        return connection


def _log_statement(query: LoggedQuery) -> None:
    failed = {} if query.exception is None else {"failed": type(query.exception).__name__}
    _statement_logger.debug("%s", " ".join(query.query.split()), extra={"ms": round(query.elapsed * 1000, 1), **failed})


def quote_identifier(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


# Driver errors

# asyncpg raises InternalClientError if a connection dies in the middle of a statement.
DRIVER_ERRORS = (asyncpg.PostgresError, OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)

UNIQUE_VIOLATION = "23505"
LOCK_NOT_AVAILABLE = "55P03"
PERMISSION_DENIED = "42501"

# The server aborted one of several conflicting transactions; the same work can be retried.
CONFLICT_ERRORS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class StatementFailed(BrokerError):
    """The server rejected a statement."""

    def __init__(self, message: str, *, sqlstate: str | None, retryable: bool, hint: str | None = None) -> None:
        super().__init__(message, code=BrokerErrorCode.MONITORING_QUERY_FAILED, retryable=retryable, hint=hint)
        self.sqlstate = sqlstate


class LockTimeout(StatementFailed):
    """A lock was not granted within `lock_timeout`. The database is available: another session holds the lock."""


# Connection errors that no retry can fix, with a hint.
_LOGIN_ERRORS = {
    "28P01": ("the server refused the password", "check the user and password in broker.database_url"),
    "28000": (
        "the server refused the login",
        "check the user in broker.database_url and the server's pg_hba.conf",
    ),
    "3D000": ("the database does not exist", "create it, or correct its name in broker.database_url"),
}

_UNAVAILABLE_STATES = {
    "53300": "too many connections; raise max_connections or lower broker.pool_size",
    "57P01": "the server is shutting down, or an administrator closed the connection",
    "57P02": "the server is restarting after a crash",
    "57P03": "the server is starting up",
}

# Conflicts, resources, object state (lock timeouts), operator intervention and lost connections.
_RETRYABLE_CLASSES = ("40", "53", "55", "57", "08")


def translate_error(error: Exception, *, where: str, expects_writes: bool = False) -> HorsiesError:
    """The HorsiesError for a driver error; `where` is the masked URL of the database."""
    if expects_writes and isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return DatabaseUnreachable(f"{where} is a read-only standby", hint="promote it, or connect to the primary")
    if isinstance(error, asyncpg.PostgresError):
        return _translate_server_error(error, where)
    if isinstance(error, TimeoutError):
        hint = "check that the server is running and reachable over the network"
        return DatabaseUnreachable(f"no answer in time from {where}", hint=hint)
    hint = "check that the server is running and broker.database_url is correct"
    if is_embedded_url(where):
        hint = "the embedded server may be stopped; run: horsies db start"
    return DatabaseUnreachable(f"cannot reach {where}: {_first_line(error)}", hint=hint)


@contextmanager
def translated_errors(where: str, *, expects_writes: bool = False) -> Generator[None]:
    """Raise driver errors inside the block as HorsiesErrors."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate_error(error, where=where, expects_writes=expects_writes) from error


def _translate_server_error(error: asyncpg.PostgresError, where: str) -> HorsiesError:
    state = error.sqlstate or ""
    message = _first_line(error)
    if state in _LOGIN_ERRORS:
        refusal, hint = _LOGIN_ERRORS[state]
        return DatabaseUnreachable(f"{refusal}: {message} ({where})", retryable=False, hint=hint)
    # PgBouncer's own error, recognised by its text: by SQLSTATE it would count as a lost connection and be retried.
    if "unsupported startup parameter" in message:
        hint = "for PgBouncer, set broker.pgbouncer_transaction_mode and broker.session_database_url (a direct address)"
        return DatabaseUnreachable(f"{where}: {message}", retryable=False, hint=hint)
    if state in _UNAVAILABLE_STATES or state.startswith("08"):
        hint = _UNAVAILABLE_STATES.get(state, "the connection was lost")
        # Starting up and shutting down share one SQLSTATE; only the message differs.
        if state == "57P03" and "shutting down" in message:
            hint = "the server is shutting down; start it again"
        return DatabaseUnreachable(f"{where}: {message}", hint=hint)
    # Undefined table or function: the schema was never migrated, or is older than this code.
    if state == "42P01" or (state == "42883" and "function horsies_" in message):
        return ConfigurationError(
            f"the database has no horsies tables: {message}",
            code=ErrorCode.SCHEMA_NOT_MIGRATED,
            hint="run: horsies db migrate",
        )
    if state == LOCK_NOT_AVAILABLE:
        return LockTimeout(message, sqlstate=state, retryable=True, hint="run: horsies doctor")
    hint = "grant the permission, or use another role in broker.database_url" if state == PERMISSION_DENIED else None
    return StatementFailed(message, sqlstate=state, retryable=state.startswith(_RETRYABLE_CLASSES), hint=hint)


def _first_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0]


# Datetime codec

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_LONGEST: Final = timedelta(days=10**8)
_INFINITY: Final = 2**63
"""Stored microseconds: -2**63 is -infinity, 2**63 - 1 is infinity."""


async def set_datetime_codec(connection: Connection) -> None:
    """Clamp times that Python cannot represent to the nearest one it can.

    For read-only connections: one such row must not make a whole page unreadable. Others keep the driver's codec.
    """
    for name, encoder, decoder in (
        ("timestamptz", _encode_timestamp, _decode_timestamp),
        ("interval", _encode_interval, _decode_interval),
    ):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="tuple")


def _encode_timestamp(at: datetime) -> tuple[int]:
    if at == datetime.min:  # noqa: DTZ901  # asyncpg's infinities
        return (-_INFINITY,)
    if at == datetime.max:  # noqa: DTZ901
        return (_INFINITY - 1,)
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
    # The same conversion as the driver's own decoder: 365 days a year, 30 days a month.
    years, months = divmod(months, 12)
    days += years * 365 + months * 30
    try:
        length = timedelta(days=days, microseconds=microseconds)
    except OverflowError:
        return _LONGEST if days > 0 else -_LONGEST
    return max(-_LONGEST, min(length, _LONGEST))
