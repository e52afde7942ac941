"""What a server that does not answer is said to need."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from horsies.embedded.layout import ClusterPaths
from horsies.store.connection import translate_error


@pytest.mark.parametrize("folder", ["/home/ada/horsies", "/home/ada/" + "a folder/" * 20])
def test_an_embedded_server_that_is_gone_is_to_be_started(folder: str) -> None:
    error = translate_error(ConnectionRefusedError("refused"), where=ClusterPaths(Path(folder)).url)
    assert error.help_text == "the embedded server may be stopped; run: horsies db start"


@pytest.mark.parametrize(
    "where", ["postgresql://horsies@db/horsies", "postgresql://horsies@/horsies?host=/var/run/postgresql"]
)
def test_a_server_of_ones_own_that_is_gone_is_not_taken_for_the_embedded_one(where: str) -> None:
    error = translate_error(ConnectionRefusedError("refused"), where=where)
    assert error.help_text == "check that the server is running and broker.database_url is correct"


@pytest.mark.parametrize(
    ("says", "hint"),
    [
        ("the database system is starting up", "the server is starting up"),
        ("the database system is shutting down", "the server is shutting down; start it again"),
    ],
)
def test_a_server_that_goes_down_is_not_said_to_come_up(says: str, hint: str) -> None:
    assert translate_error(asyncpg.CannotConnectNowError(says), where="db").help_text == hint
