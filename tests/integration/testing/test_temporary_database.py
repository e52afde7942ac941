"""Temporary databases and the pytest fixtures for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.testing import (
    TemporaryServer,
    drain,
    temporary_database,
    temporary_database_async,
    using_database,
)
from horsies.testing.pytest_plugin import horsies_database, horsies_server

__all__ = ["horsies_database", "horsies_server"]


def test_temporary_database_is_migrated_and_removed_afterwards() -> None:
    with temporary_database() as url:
        app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))

        @app.task("noop")
        def noop() -> TaskResult[str, TaskError]:
            return TaskResult(ok="ran")

        handle = noop.send().unwrap()
        assert drain(app) == 1
        assert handle.get(timeout_ms=0).ok_value == "ran"
        app.close()
    assert not Path(parse_qs(urlsplit(url).query)["host"][0]).exists()


async def test_temporary_database_inside_running_loop() -> None:
    async with temporary_database_async() as url:
        app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))
        assert (await app.ping_database_async()).is_ok()
        await app.close_async()


def test_each_database_of_a_server_is_new(horsies_server: TemporaryServer) -> None:
    with horsies_server.database() as one, horsies_server.database() as other:
        assert one != other


def test_database_is_dropped_while_app_is_connected(horsies_server: TemporaryServer) -> None:
    with horsies_server.database() as url:
        app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))
        assert app.ping_database().is_ok()
    assert app.ping_database().is_err()
    app.close()


def test_app_made_at_import_can_use_another_database(horsies_database: str) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nobody@192.0.2.1/nothing")))

    @app.task("noop")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    with using_database(app, horsies_database):
        noop.send().unwrap()
        assert drain(app) == 1
    assert "192.0.2.1" in app.get_broker().settings.database_url.masked


def test_fixtures_work_from_a_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["horsies.testing.pytest_plugin"]\n')
    (tmp_path / "test_it.py").write_text(
        "def test_it(horsies_database):\n    assert horsies_database.startswith('postgresql://')\n"
    )
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed" in done.stdout
