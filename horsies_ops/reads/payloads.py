"""What tasks were given, for lists: many at once, and only what is short."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from horsies.store.db import Database

LONGEST: Final = 2_000
"""Bytes, as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The arguments of one task; the documents are None where they are too long for a list."""

    id: UUID
    size: int
    """Bytes, as they are stored."""
    args_json: str | None
    kwargs_json: str | None

    @property
    def document(self) -> Any:
        """The arguments as one value: by name, and under `args` those that have none. None where they are too long."""
        if self.args_json is None or self.kwargs_json is None:
            return None
        args: list[Any] = json.loads(self.args_json)
        kwargs: dict[str, Any] = json.loads(self.kwargs_json)
        return {"args": args, **kwargs} if args else kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadQueries:
    payloads: Query[Payload]


PAYLOADS = load(PayloadQueries, "horsies_ops.reads", "payloads")


async def payloads_of(database: Database, ids: Iterable[UUID], *, longest: int = LONGEST) -> dict[UUID, Payload]:
    """What each of these tasks was given; those that are gone are left out."""
    wanted = list(ids)
    found = await database.fetch(PAYLOADS.payloads, wanted, longest) if wanted else []
    return {payload.id: payload for payload in found}
