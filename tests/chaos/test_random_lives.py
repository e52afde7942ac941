"""Whatever happens to tasks and workers, in any order: every promise is kept after each step.

The same machine must notice where one is not: it is let loose on finishes whose fence was taken down. A few lives at a
time; `--hypothesis-profile=chaos` tries many, and others each time.
"""

from __future__ import annotations

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

CHECK_VIOLATION = "23514"
TOKEN = "AND t.claim_token = input.claim_token"
OWNER = "AND t.claimed_by_worker_id = input.worker_id"
STATUS = "AND t.status || '' = 'RUNNING'"
FENCES = {
    "of the claim": (TOKEN, OWNER),
    "of the status": (STATUS,),
    "of the claim and of the status": (TOKEN, OWNER, STATUS),
}


class Rewritten(Database):
    """Sends other statements in place of some of ours."""

    def __init__(self, link: ConnectionSpec, others: Mapping[str, Query[Any]]) -> None:
        super().__init__(link)
        self._others = others

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        try:
            return await super().fetch(self._others.get(query.name, query), *arguments)
        except StatementFailed as error:
            if error.sqlstate != CHECK_VIOLATION:
                raise
            return []  # a table constraint refused the write; go on until the missing fence shows


def without(query: Query[Any], fence: tuple[str, ...]) -> Query[Any]:
    """The shipped statement but for these words, each of which it must have once."""
    for words in fence:
        before, after = query.sql.split(words)
        query = replace(query, sql=before + after)
    return query


@pytest.fixture
def lives(request: pytest.FixtureRequest) -> settings:
    """The same ones each time, and others in `make chaos`."""
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
def test_every_promise_is_kept_whatever_happens(database_url: str, lives: settings) -> None:
    with AgingDatabase.open(database_url) as stage:
        run_state_machine_as_test(state_machine_for(stage), settings=lives)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fence", FENCES.values(), ids=FENCES.keys())
def test_a_finish_without_its_fence_is_found_out(database_url: str, lives: settings, fence: tuple[str, ...]) -> None:
    unfenced = {query.name: without(query, fence) for query in (CLAIMS.finish, CLAIMS.complete)}
    # The first fault will do; nobody needs it small.
    hunt = settings(lives, max_examples=400, phases=[Phase.generate])
    unguarded = AgingDatabase.open(database_url, lambda link: Rewritten(link, unfenced))
    with unguarded as stage, pytest.raises(AssertionError, match="C2 task"):
        run_state_machine_as_test(state_machine_for(stage), settings=hunt)
