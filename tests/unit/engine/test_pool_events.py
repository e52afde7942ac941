"""What a worker does at events of its pool."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any
from unittest.mock import Mock

from horsies.engine.dispatcher import Wakeup
from horsies.engine.pool_events import PoolEvents


def pool_events(**parts: Any) -> PoolEvents:
    """With these parts; the others ignore every call."""
    return PoolEvents(**{field.name: Mock() for field in fields(PoolEvents) if field.init} | parts)


def test_lost_fork_server_wakes_the_dispatcher_to_release_its_tasks() -> None:
    wakeup, publish_health_now = Wakeup(), asyncio.Event()
    pool_events(wakeup=wakeup, publish_health_now=publish_health_now).on_fork_server_lost(7, "died")
    assert wakeup.event.is_set()
    assert publish_health_now.is_set()
