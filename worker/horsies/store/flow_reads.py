"""Runs and their nodes, as those who started them look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcomeRow:
    """How a run stands; document and error are JSON."""

    id: UUID
    status: str
    document: str | None
    error: str | None
    is_map: bool
    """Whether its result is one of several nodes."""
    output_name: str | None
    output_definition_key: str | None
    """Of the sub-workflow that made its result, where one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfoRow:
    node_id: str
    task_index: int
    task_name: str
    status: str
    task_id: UUID | None
    is_subworkflow: bool
    definition_key: str | None
    sub_workflow_id: UUID | None
    document: str | None
    started_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReadQueries:
    outcomes: Query[RunOutcomeRow]
    nodes: Query[NodeInfoRow]


FLOW_READS = load(FlowReadQueries, "horsies.store", "flow_reads")


@dataclass(frozen=True, slots=True)
class FlowReadStore:
    """Runs of one database, to be looked at."""

    database: Database

    async def outcomes(self, workflow_ids: Iterable[UUID]) -> list[RunOutcomeRow]:
        return await self.database.fetch(FLOW_READS.outcomes, list(workflow_ids))

    async def nodes(self, workflow_id: UUID) -> list[NodeInfoRow]:
        """By index."""
        return await self.database.fetch(FLOW_READS.nodes, workflow_id)
