"""What happened: written down for operators, told to those who watch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from horsies.store.db import Database, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that an operator should be able to read later, with its evidence in JSON values."""

    kind: str
    task_id: UUID | None = None
    workflow_id: UUID | None = None
    worker_id: UUID | None = None
    claim_token: int | None = None
    queue_name: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventId:
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQueries:
    record: Query[EventId]
    announce: Query[Announced]


EVENTS = load(EventQueries, "horsies.store", "events")


@dataclass(frozen=True, slots=True)
class EventStore:
    """Events of one database."""

    database: Database

    async def record(self, event: Event) -> None:
        """Write an event down, and tell those who watch."""
        await self.database.fetch(EVENTS.record, *_columns(event))

    async def announce(self, messages: Sequence[str]) -> None:
        """Tell those who watch, and nobody else; for messages that no other statement takes along."""
        await self.database.fetch(EVENTS.announce, messages)


async def record_within(transaction: Transaction, event: Event) -> None:
    """The same as part of what the event tells of."""
    await transaction.fetch(EVENTS.record, *_columns(event))


def _columns(event: Event) -> tuple[object, ...]:
    return (
        event.kind,
        event.task_id,
        event.workflow_id,
        event.worker_id,
        event.claim_token,
        event.queue_name,
        json.dumps(event.evidence),
    )
