"""What operators did, or looked at doing: one row an action."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from horsies.store.db import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditId:
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQueries:
    begin: Query[AuditId]
    add: Query[AuditId]


AUDIT = load(AuditQueries, "horsies.store", "audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who acts: a name, the host it acts from, and the way it came (`cli`, `tui`, `library`)."""

    name: str
    host: str
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """An action as it is asked for: by whom, on what, and why."""

    operator: Operator
    action: str
    reason: str | None
    filter: Mapping[str, object]
    matched: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A part of an action that has been carried out. Of the ids, the first 1,000 of the whole action are kept."""

    matched: int = 0
    """What was found on the way, for an action that does not know beforehand what it will meet."""
    affected: int = 0
    skipped: int = 0
    task_ids: Sequence[UUID] = ()


async def write_down(transaction: Transaction, deed: Deed, done: Done, audit_id: int | None = None) -> int:
    """Begin the row of an action, or add to the one that `audit_id` names; commits with what was done."""
    if audit_id is not None:
        added = (done.matched, done.affected, done.skipped, done.task_ids)
        (row,) = await transaction.fetch(AUDIT.add, audit_id, *added)
        return row.id
    operator = deed.operator
    (row,) = await transaction.fetch(
        AUDIT.begin,
        operator.name,
        operator.host,
        operator.via,
        deed.action,
        deed.reason,
        json.dumps(deed.filter),
        deed.is_dry_run,
        deed.matched + done.matched,
        done.affected,
        done.skipped,
        done.task_ids,
    )
    return row.id
