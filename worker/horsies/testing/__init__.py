"""Helpers for testing tasks: run them inline without a database, or run stored ones in a temporary database.

`inline` needs no server. `drain` runs stored tasks; `temporary_database` creates a database for them. Fixtures are in
`horsies.testing.pytest_plugin`, the only module here that needs pytest.
"""

from horsies.testing.databases import (
    TemporaryServer,
    temporary_database,
    temporary_database_async,
    temporary_server,
    using_database,
)
from horsies.testing.drain import drain, drain_async
from horsies.testing.inline import FiredSlot, ScheduleClock, clock, inline

__all__ = [
    "FiredSlot",
    "ScheduleClock",
    "TemporaryServer",
    "clock",
    "drain",
    "drain_async",
    "inline",
    "temporary_database",
    "temporary_database_async",
    "temporary_server",
    "using_database",
]
