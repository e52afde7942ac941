"""The few lines on what our tables take up, and what keeps the server from tidying them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import humanize
from textual.content import Content
from textual.widgets import Static

from horsies_tui.format import age, safe, short_age

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_ops.reads.storage import Storage, TableStorage

NAMED: Final = 4
"""Of the tables, so many of the largest."""


class StoragePane(Static):
    """Sizes on the first line, what holds up the vacuum on the second."""

    def on_mount(self) -> None:
        self.border_title = " Storage "

    def show(self, storage: Storage, now: datetime) -> None:
        tables = "   ".join(_table(table, now) for table in storage.tables[:NAMED])
        self.update(Content("\n").join([safe(tables), safe(_server(storage))]))


def _table(table: TableStorage, now: datetime) -> str:
    name = table.name.removeprefix("horsies_")
    vacuum = "" if table.last_vacuum_at is None else f", vacuumed {short_age(now - table.last_vacuum_at)}"
    return f"{name} {humanize.naturalsize(table.bytes, gnu=True)}, {table.dead_share:.0%} dead{vacuum}"


def _server(storage: Storage) -> str:
    open_one = storage.longest_transaction
    longest = "none" if open_one is None else f"{age(open_one.age)} (pid {open_one.pid} {open_one.application_name})"
    return f"notify queue {storage.notify_queue:.1%} full   longest open transaction {longest}"
