from __future__ import annotations

from collections.abc import Iterator

import pytest

from horsies import Horsies
from horsies.testing import drain
from tests.support.ledger_app import URL
from tests.support.store import fetch_rows, make_app
from tests.support.workflow_app import register_workflow_tasks
from tests.support.workflows import diamond, nested


@pytest.fixture
def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Horsies]:
    fetch_rows(database_url, "CREATE TABLE ledger (task_id uuid, claim_token bigint, attempt int, pid int, what text)")
    monkeypatch.setenv(URL, database_url)
    app = make_app(database_url)
    register_workflow_tasks(app)
    yield app
    app.close()


def test_drain_runs_workflows_to_their_end(app: Horsies) -> None:
    handle = diamond(app).start().unwrap()
    assert drain(app) == 4
    assert handle.get(0).ok_value == 6


def test_drain_starts_sub_workflows(app: Horsies) -> None:
    handle = nested(app).start().unwrap()
    assert drain(app) == 4
    assert handle.get(0).ok_value == 20


def test_drain_with_limit_leaves_the_rest(app: Horsies) -> None:
    handle = diamond(app).start().unwrap()
    assert drain(app, limit=1) == 1
    assert handle.get(0).err_value.error_code == "WAIT_TIMEOUT"
    assert [node.status for node in handle.tasks().unwrap()] == ["COMPLETED", "ENQUEUED", "ENQUEUED", "PENDING"]
