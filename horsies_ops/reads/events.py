"""What happened, and what operators did."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    id: int
    at: datetime
    kind: str
    task_id: UUID | None
    workflow_id: UUID | None
    worker_id: UUID | None
    claim_token: int | None
    queue: str | None
    evidence_json: str

    @property
    def evidence(self) -> dict[str, Any]:
        return json.loads(self.evidence_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One action of an operator."""

    id: int
    at: datetime
    actor: str
    host: str
    action: str
    reason: str | None
    filter_json: str | None
    dry_run: bool
    matched: int
    affected: int
    skipped: int
    via: str
    task_ids: tuple[UUID, ...]

    @property
    def filter(self) -> Any:
        return None if self.filter_json is None else json.loads(self.filter_json)


async def events(
    database: Database,
    *,
    after: int | None = None,
    before: int | None = None,
    kinds: Sequence[str] = (),
    task_id: UUID | None = None,
    since: timedelta | None = None,
    limit: int = 100,
) -> tuple[EventRow, ...]:
    """Events in the order of writing: those next after an id, else the last ones, where given before another."""
    raise NotImplementedError


async def audit(
    database: Database, *, after: int | None = None, before: int | None = None, limit: int = 100
) -> tuple[AuditRow, ...]:
    """Actions in the order in which they were begun; `after` and `before` as for events."""
    raise NotImplementedError
