"""Asking the configured database whether tasks could be sent and heard of there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.errors import BrokerError, ConfigurationError, DatabaseUnreachable, ErrorCode, HorsiesError
from horsies.store.migrate import SCHEMA, schema_state
from horsies.store.probe import is_heard

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from horsies.client.broker import PostgresBroker, Session

LONGEST_WAY_S = 5.0


async def live_faults(broker: PostgresBroker) -> list[HorsiesError]:
    """What keeps this process from working with its database; a server that does not answer is asked nothing more."""
    try:
        session = await broker.session()
        await session.database.fetch(SCHEMA.server)
    except HorsiesError as error:
        return [_told(error)]
    found = [await _fault_of(_refuse_schema(session)), await _fault_of(_refuse_silence(session))]
    return [fault for fault in found if fault is not None]


async def _fault_of(asked: Awaitable[None]) -> HorsiesError | None:
    try:
        await asked
    except HorsiesError as error:
        return _told(error)
    return None


async def _refuse_schema(session: Session) -> None:
    (await schema_state(session.database)).refuse_unless_current()


async def _refuse_silence(session: Session) -> None:
    if not await is_heard(session.database, session.direct, within_s=LONGEST_WAY_S):
        raise ConfigurationError(
            f"a notification did not come back from {session.direct.masked_url} within {LONGEST_WAY_S:.0f} s",
            code=ErrorCode.BROKER_INIT_FAILED,
            hint="LISTEN cannot pass a transaction pooler: set broker.session_database_url to the server itself",
        )


def _told(error: HorsiesError) -> HorsiesError:
    """A failure of the database as a finding: HRS-203 where its address must change, else HRS-211."""
    if not isinstance(error, BrokerError):
        return error
    is_refusal = isinstance(error, DatabaseUnreachable) and not error.retryable
    code = ErrorCode.BROKER_INVALID_URL if is_refusal else ErrorCode.BROKER_INIT_FAILED
    return ConfigurationError(error.message, code=code, hint=error.help_text, notes=error.notes)
