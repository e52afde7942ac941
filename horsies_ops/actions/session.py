"""`OperatorSession`: the database that actions write to, and the operator that their audit entries name."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from horsies.errors import Refused
from horsies.store.database import Database, Transaction
from horsies.store.operators import AuditEntry, Operator

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A database and the operator who changes it."""

    database: Database
    operator: Operator

    @classmethod
    def for_actor(cls, actor: str | None, *, via: str, database: Database) -> OperatorSession:
        """Act as `actor`, else as HORSIES_ACTOR, else as user@host."""
        host = socket.gethostname()
        name = actor or os.environ.get("HORSIES_ACTOR") or f"{_user()}@{host}"
        return cls(database, Operator(name=name, host=host, via=via))

    def require_writable(self) -> None:
        if self.database.connection_spec.read_only:
            raise Refused("this connection is read-only", hint="connect without read_only to change anything")

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in a transaction; raises `Refused` on a read-only connection."""
        self.require_writable()
        return await self.database.run(work)

    def audit_entry(
        self,
        action: str,
        reason: str | None,
        filter: Mapping[str, object],  # noqa: A002  # the column's name
        *,
        matched: int = 1,
        is_dry_run: bool = False,
    ) -> AuditEntry:
        """Return the audit entry of an action of this operator."""
        return AuditEntry(
            operator=self.operator, action=action, reason=reason, filter=filter, matched=matched, is_dry_run=is_dry_run
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no name
        return str(os.getuid())
