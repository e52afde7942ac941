"""Hints of errors for unavailable servers."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from horsies.embedded.layout import ClusterPaths
from horsies.store.connection import translate_error


@pytest.mark.parametrize("folder", ["/home/ada/horsies", "/home/ada/" + "a folder/" * 20])
def test_hint_for_stopped_embedded_server_is_to_start_it(folder: str) -> None:
    error = translate_error(ConnectionRefusedError("refused"), where=ClusterPaths(Path(folder)).url)
    assert error.help_text == "the embedded server may be stopped; run: horsies db start"


@pytest.mark.parametrize(
    "where", ["postgresql://horsies@db/horsies", "postgresql://horsies@/horsies?host=/var/run/postgresql"]
)
def test_external_server_is_not_mistaken_for_embedded_one(where: str) -> None:
    error = translate_error(ConnectionRefusedError("refused"), where=where)
    assert error.help_text == "check that the server is running and broker.database_url is correct"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("the database system is starting up", "the server is starting up"),
        ("the database system is shutting down", "the server is shutting down; start it again"),
    ],
)
def test_shutting_down_and_starting_up_have_different_hints(message: str, hint: str) -> None:
    assert translate_error(asyncpg.CannotConnectNowError(message), where="db").help_text == hint
