"""When live tasks last gave a sign of life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBeat:
    """The newest beat of the claim that a task is under; the claim and the start themselves are the first ones."""

    role: str
    at: datetime
    age: timedelta


async def beats_of(database: Database, ids: Iterable[UUID]) -> dict[UUID, LastBeat]:
    """The last beat of each of these tasks that is claimed or running."""
    raise NotImplementedError
