"""A Hypothesis state machine: every promise holds after any sequence of steps of tasks and workers.

To check the machine itself, it must find the violation when the fence is removed from the finish statements. Few
examples by default; `--hypothesis-profile=chaos` tries many random ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from horsies.store.claims import CLAIMS
from horsies.store.connection import ConnectionSpec, StatementFailed
from horsies.store.database import Database
from horsies.store.queries import Query
from tests.support.simulated_workers import AgingDatabase
from tests.support.state_machine import state_machine_for

CONSTRAINT_VIOLATIONS = {"23502", "23514"}
"""A missing value (a task without a start has no time for its attempt) and a violated check."""
TOKEN = r"AND t\.claim_token = input\.claim_token"
OWNER = r"AND t\.claimed_by_worker_id = \S+"
STATUS = r"AND t\.status \|\| '' = 'RUNNING'"
NO_FENCE = "AND $3::uuid[] IS NOT NULL"
"""Always true. It mentions the owners, because a statement must use its parameters."""
FENCES = {
    "claim": (TOKEN, OWNER),
    "status": (STATUS,),
    "claim and status": (TOKEN, OWNER, STATUS),
}


class RewritingDatabase(Database):
    """Replaces some statements by others."""

    def __init__(self, link: ConnectionSpec, replacements: Mapping[str, Query[Any]]) -> None:
        super().__init__(link)
        self._replacements = replacements

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        try:
            return await super().fetch(self._replacements.get(query.name, query), *arguments)
        except StatementFailed as error:
            if error.sqlstate not in CONSTRAINT_VIOLATIONS:
                raise
            # A table constraint refused the write; go on until the missing fence shows.
            return [0] if query is CLAIMS.complete else []


def without(query: Query[Any], fence: tuple[str, ...]) -> Query[Any]:
    """The statement without these clauses, each of which it must contain once."""
    sql = query.sql
    for clause in fence:
        sql, removed = re.subn(clause, NO_FENCE, sql)
        assert removed == 1, f"{query.name} contains {clause} {removed} times"
    return replace(query, sql=sql)


@pytest.fixture
def machine_settings(request: pytest.FixtureRequest) -> settings:
    """A few fixed examples, or many random ones in `make chaos`."""
    is_chaos = request.config.getoption("--hypothesis-profile") == "chaos"
    return settings(
        max_examples=200 if is_chaos else 25,
        stateful_step_count=30,
        derandomize=not is_chaos,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


@pytest.mark.timeout(600)
def test_promises_hold_after_any_steps(database_url: str, machine_settings: settings) -> None:
    with AgingDatabase.open(database_url) as simulated:
        run_state_machine_as_test(state_machine_for(simulated), settings=machine_settings)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fence", FENCES.values(), ids=FENCES.keys())
def test_missing_fence_is_detected(database_url: str, machine_settings: settings, fence: tuple[str, ...]) -> None:
    unfenced = {query.name: without(query, fence) for query in (CLAIMS.finish, CLAIMS.complete)}
    # The first violation is enough; shrinking it would take time.
    search_settings = settings(machine_settings, max_examples=400, phases=[Phase.generate])
    unfenced_database = AgingDatabase.open(database_url, lambda link: RewritingDatabase(link, unfenced))
    with unfenced_database as simulated, pytest.raises(AssertionError, match="C2 task"):
        run_state_machine_as_test(state_machine_for(simulated), settings=search_settings)
