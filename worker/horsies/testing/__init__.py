"""For the tests of task authors: tasks that run where they are sent, and databases to throw away.

`inline` needs no server. `drain` runs what was really stored, and `temporary_database` gives it somewhere to be stored.
The fixtures are in `horsies.testing.pytest_plugin`, the only module here that needs pytest.
"""

from horsies.testing.databases import (
    TemporaryServer,
    temporary_database,
    temporary_database_async,
    temporary_server,
    using_database,
)
from horsies.testing.drain import drain, drain_async
from horsies.testing.inline import inline

__all__ = [
    "TemporaryServer",
    "drain",
    "drain_async",
    "inline",
    "temporary_database",
    "temporary_database_async",
    "temporary_server",
    "using_database",
]
