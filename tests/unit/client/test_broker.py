"""What a broker makes of its settings."""

from __future__ import annotations

import pytest

from horsies import PostgresConfig
from horsies.client.broker import PostgresBroker


@pytest.mark.parametrize(("pool_timeout", "wait_s"), [(2, 2), (30, 30), (45, 30)])
def test_a_send_waits_for_its_key_no_longer_than_the_server_lets_a_statement_wait(
    pool_timeout: float, wait_s: float
) -> None:
    assert PostgresBroker(PostgresConfig(pool_timeout=pool_timeout)).key_wait_s == wait_s
