"""What a failure of the driver means: from SQLSTATE to what happened, what to do, and whether to ask again."""

from __future__ import annotations

from dataclasses import dataclass

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

# The driver says InternalClientError when a connection dies between two steps of one statement.
LOST_CONNECTION = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)

UNIQUE_VIOLATION = "23505"

# Errors after which the same batch is simply sent again: the server chose us as the one to step back.
STEP_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


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

_COMES_BACK = {
    "53300": "the server has no connection left; raise max_connections or lower broker.pool_size",
    "57P01": "the server was told to stop, or to end this connection",
    "57P02": "the server is restarting after a crash",
    "57P03": "the server is starting up",
}

_WORTH_ANOTHER_TRY = ("40", "53", "55", "57", "08")


def explain(error: BaseException, *, where: str, expects_writes: bool = False) -> HorsiesError:
    """The error of ours that says what `error` means for the database at `where` (a masked URL)."""
    if expects_writes and isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return DatabaseUnreachable(f"{where} takes no writes", hint="a standby; it will, once it is promoted")
    if isinstance(error, asyncpg.PostgresError):
        return _explain_server(error, where)
    if isinstance(error, TimeoutError):
        return DatabaseUnreachable(f"no answer in time from {where}", hint="is the server up, and is the network?")
    if isinstance(error, LOST_CONNECTION):
        return DatabaseUnreachable(f"cannot reach {where}: {_first_line(error)}", hint=_how_to_reach(where))
    raise error


def is_failure_of_database(error: BaseException) -> bool:
    """Whether `explain` has something to say about it."""
    return isinstance(error, (asyncpg.PostgresError, *LOST_CONNECTION))


def _how_to_reach(where: str) -> str:
    if is_address_of_embedded(where):
        return "is the embedded server stopped? run: horsies db start"
    return "is the server up, and is the address right?"


def _explain_server(error: asyncpg.PostgresError, where: str) -> HorsiesError:
    state = error.sqlstate or ""
    says = _first_line(error)
    if refusal := _REFUSALS.get(state):
        return DatabaseUnreachable(f"{refusal.says}: {says} ({where})", retryable=False, hint=refusal.hint)
    if "unsupported startup parameter" in says:
        hint = "behind PgBouncer set broker.pgbouncer_transaction_mode, and broker.session_database_url to the server"
        return DatabaseUnreachable(f"{where}: {says}", retryable=False, hint=hint)
    if state in _COMES_BACK or state.startswith("08"):
        return DatabaseUnreachable(f"{where}: {says}", hint=_until_it_is_back(state, says))
    if state == "42P01" or (state == "42883" and "function horsies_" in says):
        return ConfigurationError(
            f"the database has no horsies tables: {says}",
            code=ErrorCode.SCHEMA_NOT_MIGRATED,
            hint="run: horsies db migrate",
        )
    hint = "grant it, or use another role in broker.database_url" if state == "42501" else None
    return StatementFailed(says, sqlstate=state, retryable=state.startswith(_WORTH_ANOTHER_TRY), hint=hint)


def _until_it_is_back(state: str, says: str) -> str:
    # Not up yet and no longer up are one SQLSTATE; only the words tell which.
    if state == "57P03" and "shutting down" in says:
        return "the server was told to stop; it answers again once it is started"
    return _COMES_BACK.get(state, "the connection was lost")


def _first_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0]
