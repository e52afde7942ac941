"""Signs of life for what a worker holds; the answer tells it what it no longer does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load
from horsies.store.work import hold_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies.store.db import Database
    from horsies.store.work import Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A task that is alive in the process `pid`."""

    hold: Hold
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How long a claim is renewed for, and how old it may be for that."""

    length_s: float
    longest_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a task stands that was beaten for. Only where `is_held` was a beat written.

    `status` is None where the task is gone; `error_code` is that of its end.
    """

    id: UUID
    claim_token: int
    is_held: bool
    status: str | None
    current_token: int | None
    kill_requested: bool
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatQueries:
    beat: Query[Answer]


BEATS = load(BeatQueries, "horsies.store", "beats")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatStore:
    """Heartbeats in one database, sent from one host."""

    database: Database
    hostname: str

    async def claimer_beats(
        self, beats: Sequence[Beat], *, lease: Lease | None = None, events: Sequence[str] = ()
    ) -> list[Answer]:
        """Beat for CLAIMED tasks and renew their leases; one that has lapsed already is left to whoever takes it."""
        return await self._beat("claimer", beats, lease, events)

    async def runner_beats(self, beats: Sequence[Beat], *, events: Sequence[str] = ()) -> list[Answer]:
        """Beat for RUNNING tasks, and tell viewers how many live."""
        return await self._beat("runner", beats, None, events)

    async def _beat(self, role: str, beats: Sequence[Beat], lease: Lease | None, events: Sequence[str]) -> list[Answer]:
        return await self.database.fetch(
            BEATS.beat,
            *hold_columns([beat.hold for beat in beats]),
            [beat.pid for beat in beats],
            role,
            self.hostname,
            lease and lease.length_s,
            lease and lease.longest_age_s,
            events,
        )
