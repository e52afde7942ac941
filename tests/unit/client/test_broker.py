"""Settings of the broker."""

from __future__ import annotations

import pytest

from horsies import PostgresConfig
from horsies.client.broker import PostgresBroker


@pytest.mark.parametrize(("pool_timeout", "wait_s"), [(2, 2), (30, 30), (45, 30)])
def test_key_wait_is_limited_by_the_statement_timeout(pool_timeout: float, wait_s: float) -> None:
    assert PostgresBroker(PostgresConfig(pool_timeout=pool_timeout)).key_wait_s == wait_s
