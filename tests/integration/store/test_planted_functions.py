"""A role that may create functions in our schema cannot make our statements call them.

An overload whose argument types match a call exactly wins over a built-in function that needs a cast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import asyncpg
import pytest

from tests.integration.store.test_statements import EVERY_QUERY
from tests.support.databases import Cluster
from tests.support.planting import Call, calls_in, parse_tree, store_statement

DDL = {"schema.create_migrations_table", "schema.lock_migrations"}
STORABLE = [query for query in EVERY_QUERY if query.name not in DDL]
TREES = """
SELECT prosqlbody::text FROM pg_proc WHERE proname LIKE 'probe %'
 UNION ALL SELECT ev_action::text FROM pg_rewrite WHERE ev_class::regclass::text LIKE 'horsies%'
 UNION ALL SELECT tgqual::text FROM pg_trigger WHERE tgqual IS NOT NULL
"""
RESOLVED = """
SELECT probe.proname || ' calls ' || pg_describe_object(depend.refclassid, depend.refobjid, 0) AS found
  FROM pg_depend AS depend
  JOIN pg_proc AS probe ON probe.oid = depend.objid AND depend.classid = 'pg_proc'::regclass
 WHERE probe.proname LIKE 'probe %'
   AND (depend.refclassid, depend.refobjid) IN (
        SELECT 'pg_proc'::regclass::oid, oid FROM pg_proc
         WHERE pronamespace = 'public'::regnamespace AND proname !~ '^(horsies_|probe )'
         UNION ALL
        SELECT 'pg_operator'::regclass::oid, oid FROM pg_operator WHERE oprnamespace = 'public'::regnamespace)
 ORDER BY 1
"""
# No parse tree shows what a PL/pgSQL function calls, so overloads of all these types are planted for its names.
POOL = ("text", "integer", "bigint", "boolean", "timestamptz", "interval", "uuid", "jsonb", "text[]")
OPERATORS = ("=", "<>", "<", ">", "<=", ">=", "||", "-", "+", "->", "->>")
CALLS = (
    "SELECT horsies_lock_key('sweep'::text)",
    "SELECT horsies_lock_in_flight(true, ARRAY['default']::text[])",
    """SELECT horsies_quiet('RUNNING'::text, '00000000-0000-0000-0000-000000000000'::uuid, '0 s'::interval, NULL, NULL,
                            true, 10)""",
    "SELECT horsies_lock_stale(id, status, claim_token, started_at, no_restart) FROM horsies_tasks",
    "SELECT horsies_node_context(node), horsies_node_result(node) FROM horsies_workflow_tasks AS node",
    "SELECT horsies_run_summary(run) FROM horsies_workflows AS run",
    """INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha)
       VALUES ('00000000-0000-0000-0000-000000000001'::uuid, 'sent'::text, '2026-01-01'::timestamptz, ''::text)""",
)
ROWS = """
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, status, started_at)
VALUES (gen_random_uuid(), 'running', now(), '', 'RUNNING', now() - interval '1 day');
INSERT INTO horsies_workflows (id, name, status, on_error, root_workflow_id, sent_at, result, output_task_index)
VALUES ('00000000-0000-0000-0000-000000000002', 'run', 'RUNNING', 'fail', '00000000-0000-0000-0000-000000000002', now(),
        '{"ok": 1}', 0);
INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, queue_name, priority, status,
                                    args_from, workflow_ctx_from)
SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000002', index, 'node' || index, 'a', 'default', 100,
       CASE index WHEN 0 THEN 'SKIPPED' ELSE 'PENDING' END, '{"x": 0}', '{node0}'
  FROM generate_series(0, 1) AS index;
"""


@pytest.fixture
def url(cluster: Cluster) -> Iterator[str]:
    with cluster.database(migrated=True) as url:
        yield url


def function_sql(name: str, types: Sequence[str], result: str) -> str:
    """SQL for a function that fails when it is called."""
    body = "BEGIN RAISE EXCEPTION 'planted function called'; END"
    signature = f'public."{name}"({", ".join(types)})'
    return f"CREATE OR REPLACE FUNCTION {signature} RETURNS {result} LANGUAGE plpgsql AS $${body}$$"


def operator_sql(symbol: str, types: Sequence[str], result: str) -> str:
    names = ("LEFTARG", "RIGHTARG")[-len(types) :]
    arguments = ", ".join(f"{name} = {kind}" for name, kind in zip(names, types, strict=True))
    operator = f"CREATE OPERATOR public.{symbol} (FUNCTION = public.planted, {arguments})"
    return f"{function_sql('planted', types, result)}; {operator}"


async def plant_overload(connection: asyncpg.Connection[Any], call: Call, names: dict[int, str]) -> None:
    """Plant an overload with exactly the types of a call."""
    result = names[call.result]
    types = [names.get(kind, f"{result}[]") for kind in call.types]
    try:
        async with connection.transaction():
            if call.is_operator:
                symbol = await connection.fetchval("SELECT oprname FROM pg_operator WHERE oid = $1", call.oid)
                await connection.execute(operator_sql(symbol, types, result))
            else:
                name = await connection.fetchval("SELECT proname FROM pg_proc WHERE oid = $1", call.oid)
                await connection.execute(function_sql(name, types, result))
    except (asyncpg.DuplicateFunctionError, asyncpg.InvalidFunctionDefinitionError, asyncpg.FeatureNotSupportedError):
        pass  # planted before with another result, or no function can have an argument of such a type


async def test_no_statement_calls_a_planted_function_or_operator(url: str) -> None:
    connection = await asyncpg.connect(url)
    for query in STORABLE:
        await store_statement(connection, f"probe {query.name}", query.sql)
    trees = await connection.fetch(TREES)
    calls = {call for tree in trees for call in calls_in(parse_tree(tree[0]))}
    assert len(calls) > 100
    names = {row[0]: row[1] for row in await connection.fetch("SELECT oid, format_type(oid, NULL) FROM pg_type")}
    names[705] = "text"  # a literal
    for query in STORABLE:
        await connection.execute(f'DROP FUNCTION "probe {query.name}"')
    for call in calls:
        await plant_overload(connection, call, names)
    refused: list[str] = []
    for query in STORABLE:
        try:
            await store_statement(connection, f"probe {query.name}", query.sql)
        except asyncpg.PostgresError as error:
            refused.append(f"{query.name}: {error}")
    await connection.execute("SET search_path = pg_catalog")  # our own query must not call them either
    found = [row[0] for row in await connection.fetch(RESOLVED)]
    assert [*refused, *found] == []
    await connection.close()


async def test_our_functions_call_no_planted_function_or_operator(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(ROWS)
    bodies = await connection.fetch("SELECT prosrc FROM pg_proc WHERE starts_with(proname, 'horsies_')")
    words = {word for body in bodies for word in re.findall(r"(\w+)\(", body[0]) if not word.startswith("horsies_")}
    builtins = await connection.fetch(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE proname = ANY($1::text[]) AND prokind <> 'w'", list(words)
    )
    assert {"unnest", "jsonb_build_object", "hashtextextended"} <= {row[0] for row in builtins}
    planted = [function_sql(row[0], types, "bigint") for row in builtins for types in [*product(POOL), *pairs()]]
    planted += [operator_sql(symbol, types, "boolean") for symbol in OPERATORS for types in pairs()]
    await connection.execute("; ".join(planted))
    for call in CALLS:
        await connection.execute(call)
    await connection.close()


def pairs() -> list[tuple[str, str]]:
    return list(product(POOL, POOL))
