"""Queues that operators have paused."""

from __future__ import annotations

from dataclasses import dataclass

from horsies.store.queries import Query, load


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueName:
    queue_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueQueries:
    pause: Query[QueueName]
    resume: Query[QueueName]
    is_known: Query[Known]


QUEUES = load(QueueQueries, "horsies.store", "queues")
