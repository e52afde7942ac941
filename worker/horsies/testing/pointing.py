"""Pointing an app that exists already at another database."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from horsies.model.settings.url import DatabaseUrl

if TYPE_CHECKING:
    from collections.abc import Generator

    from horsies.app import Horsies


@contextmanager
def using_database(app: Horsies, url: str) -> Generator[None]:
    """Inside the block `app` uses the database at `url`, whatever its settings say.

    For apps made at import, which is before any fixture. Enter and leave it outside event loops: connections of the
    app are closed at both ends.
    """
    broker = app.get_broker()
    app.close()
    before = broker.settings
    broker.settings = before.model_copy(
        update={
            "database_url": DatabaseUrl.parse(url),
            "session_database_url": None,
            "pgbouncer_transaction_mode": False,
        }
    )
    try:
        yield
    finally:
        app.close()
        broker.settings = before
