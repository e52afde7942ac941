"""What other roles of the database may do to us: create functions, connect, hold our locks, store malformed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.store.locks import LockHolder, all_lock_holders
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Executor
    from horsies_ops.ops import Ops

MAX_MALFORMED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Privileges of roles that own neither our schema nor our tables."""

    schema: str
    creators: list[str]
    """Roles that may create functions in our schema."""
    is_open_to_strangers: bool
    """Whether roles without any privilege on our tables may connect."""
    database: str

    @property
    def creation_fault(self) -> tuple[str, str] | None:
        """Who may create functions in our schema, and how to revoke it; None if nobody may."""
        if not self.creators:
            return None
        roles = ", ".join(self.creators)
        fault = f"{roles} may create functions in the schema {self.schema}, which run as sender and worker"
        return fault, f"REVOKE CREATE ON SCHEMA {self.schema} FROM {roles}; a schema of its own is safest"


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedTask:
    """A task that breaks a rule of its table."""

    id: UUID
    columns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityQueries:
    access: Query[Access]
    malformed_tasks: Query[MalformedTask]


SECURITY_READS = load_queries(SecurityQueries, "horsies_ops.reads", "security")


async def read_access(executor: Executor) -> Access | None:
    """Return the privileges of other roles; None if our schema does not exist."""
    return await executor.fetch_one(SECURITY_READS.access)


async def malformed_tasks(ops: Ops) -> list[MalformedTask]:
    """Return tasks that break a rule of their table, newest first, at most MAX_MALFORMED."""
    return await ops.reader.fetch(SECURITY_READS.malformed_tasks, MAX_MALFORMED)


async def held_locks(ops: Ops) -> list[LockHolder]:
    """Return the sessions that hold a lock on which claims, sweeps or cleanup depend."""
    return await all_lock_holders(ops.reader)
