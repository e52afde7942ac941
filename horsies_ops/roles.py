"""The SQL that gives each kind of process its own database role, with no more privileges than it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from horsies.store.connection import quote_identifier

_ALL = "SELECT, INSERT, UPDATE, DELETE"

# A producer may insert only these columns: the others keep their defaults, so a task is always PENDING at first.
_SENT_COLUMNS = (
    "id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options, "
    "flags, idempotency_key, command_sha, enqueue_sha"
)
_WORKFLOW_COLUMNS = "is_workflow_task, workflow_id, workflow_task_index, context"
# The server sets db_role and client_addr.
_AUDIT_COLUMNS = "actor, host, via, action, reason, filter, dry_run, matched, affected, skipped, task_ids"

_WORK_TABLES: Final = (
    "horsies_tasks",
    "horsies_task_attempts",
    "horsies_heartbeats",
    "horsies_workers",
    "horsies_worker_states",
    "horsies_workflows",
    "horsies_workflow_tasks",
    "horsies_workflow_outbox",
    "horsies_events",
    "horsies_schedule_state",
    "horsies_schedule_runs",
    "horsies_schedule_participants",
    "horsies_task_catalog",
)
# Retention reads due rows through these, and locks them.
_VIEWS: Final = (
    "horsies_ended_tasks",
    "horsies_ended_trees",
    "horsies_ended_workers",
    "horsies_spent_heartbeats",
    "horsies_spent_schedule_runs",
    "horsies_old_audit",
)
TABLES: Final = (*_WORK_TABLES, "horsies_queues", "horsies_audit", "horsies_migrations", *_VIEWS)

_GRANTS: Final[Mapping[str, Mapping[str, str]]] = {
    "viewer": dict.fromkeys(TABLES, "SELECT"),
    "producer": {
        "horsies_tasks": f"SELECT, INSERT ({_SENT_COLUMNS})",
        "horsies_task_attempts": "SELECT",
        "horsies_workflows": "SELECT",
        "horsies_workflow_tasks": "SELECT",
        "horsies_migrations": "SELECT",
    },
    "worker": {
        **dict.fromkeys(_WORK_TABLES, _ALL),
        **dict.fromkeys(_VIEWS, "SELECT, UPDATE"),
        "horsies_queues": "SELECT",
        "horsies_audit": f"SELECT, DELETE, INSERT ({_AUDIT_COLUMNS})",
        "horsies_migrations": "SELECT",
    },
    "operator": {
        **dict.fromkeys(_WORK_TABLES, _ALL),
        **dict.fromkeys(_VIEWS, "SELECT, UPDATE"),
        "horsies_queues": _ALL,
        "horsies_audit": (f"SELECT, DELETE, INSERT ({_AUDIT_COLUMNS}), UPDATE (matched, affected, skipped, task_ids)"),
        "horsies_migrations": "SELECT",
    },
}
_WORKFLOW_GRANTS: Final = {
    "horsies_tasks": f"INSERT ({_WORKFLOW_COLUMNS})",
    "horsies_workflows": "INSERT",
    "horsies_workflow_tasks": "INSERT",
    "horsies_workflow_outbox": "SELECT, INSERT",
}
KINDS: Final = ("migrator", *_GRANTS)

_CONNECT: Final = """\
DO $$ BEGIN
    EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO {everyone}', current_database());
END $$;"""
_OWNERSHIP: Final = """\
DO $$
DECLARE
    change text;
BEGIN
    FOR change IN
        SELECT format('ALTER TABLE %s OWNER TO {owner}', oid::regclass)
          FROM pg_class
         WHERE relnamespace = {schema}::regnamespace AND starts_with(relname::text, 'horsies_')
           AND relkind IN ('r', 'v')
         UNION ALL
        SELECT format('ALTER FUNCTION %s OWNER TO {owner}', oid::regprocedure)
          FROM pg_proc
         WHERE pronamespace = {schema}::regnamespace AND starts_with(proname::text, 'horsies_')
         UNION ALL
        SELECT format('ALTER TYPE %s OWNER TO {owner}', type.oid::regtype)
          FROM pg_type AS type
          LEFT JOIN pg_class AS composite ON composite.oid = type.typrelid
         WHERE typnamespace = {schema}::regnamespace AND starts_with(typname::text, 'horsies_')
           AND (typtype = 'd' OR composite.relkind = 'c')
    LOOP
        EXECUTE change;
    END LOOP;
END $$;"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleScript:
    """The script for one schema; roles are named `<prefix>_viewer` and so on."""

    schema: str
    prefix: str

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def role(self, kind: str) -> str:
        return quote_identifier(f"{self.prefix}_{kind}")

    def _lines(self) -> Iterator[str]:
        schema = quote_identifier(self.schema)
        everyone = ", ".join(map(self.role, KINDS))
        yield "-- Run as a superuser in this database, after the first `horsies db migrate` and after each later one."
        yield "-- Give each role that logs in a password, for example with \\password in psql."
        for kind in KINDS:
            create = f"CREATE ROLE {self.role(kind)} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL;"
            yield f"DO $$ BEGIN {create} END $$;"
        yield _CONNECT.format(everyone=everyone)
        yield f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC;"
        yield f"GRANT USAGE ON SCHEMA {schema} TO {everyone};"
        yield ""
        yield "-- migrator: owns our objects and runs `horsies db migrate`"
        yield f"GRANT CREATE ON SCHEMA {schema} TO {self.role('migrator')};"
        yield _OWNERSHIP.format(schema=quote_literal(schema), owner=self.role("migrator"))
        for kind, grants in _GRANTS.items():
            yield ""
            yield f"-- {kind}"
            yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {self.role(kind)};"
            yield from (self._grant(table, privileges, kind) for table, privileges in grants.items())
        yield ""
        yield "-- A producer that starts workflows needs these as well; it can then store runs in any state."
        yield from (f"-- {self._grant(*grant, 'producer')}" for grant in _WORKFLOW_GRANTS.items())

    def _grant(self, table: str, privileges: str, kind: str) -> str:
        return f"GRANT {privileges} ON {quote_identifier(self.schema)}.{table} TO {self.role(kind)};"


def quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
