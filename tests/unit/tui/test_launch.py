from __future__ import annotations

from pathlib import Path

import pytest

from horsies.model.settings.broker import DatabaseUrl
from horsies_tui.format import truncate_start
from horsies_tui.launch import database_name


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://ana:secret@db1:5432/app?sslmode=require", "db1:5432/app"),
        ("embedded", "embedded"),
        ("embedded:///srv/shop/db", "embedded:/srv/shop/db"),
        (f"embedded://{Path.home()}/blog/db", "embedded:~/blog/db"),
    ],
)
def test_database_name_is_host_and_database(url: str, name: str) -> None:
    assert database_name(DatabaseUrl.parse(url)) == name


def test_project_names_its_own_database() -> None:
    url = DatabaseUrl.parse("embedded").in_project(Path("/srv/shop"), Path("/srv/shop/.horsies"))
    assert database_name(url) == "embedded:/srv/shop"


def test_long_database_name_keeps_its_end() -> None:
    assert truncate_start("embedded:/srv/shop/db", 8) == "…shop/db"
    assert truncate_start("embedded", 8) == "embedded"
    assert truncate_start("embedded", 0) == ""
