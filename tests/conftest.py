"""One private PostgreSQL cluster per run, one template database in it, one fresh database per test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from horsies.embedded.watchdog import LINGER_VARIABLE
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from tests.support.databases import CLUSTER_FOLDER, Cluster, shared_memory_folder

# On a busy machine an example may take any time.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("chaos", settings.get_profile("tests"), max_examples=1000)
settings.load_profile("tests")

_IS_XDIST_WORKER = "PYTEST_XDIST_WORKER" in os.environ


def pytest_configure() -> None:
    """Choose the folder of this run once, in the main process; all test processes write there."""
    # A background job of a shell ignores SIGINT, and so would the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup: this process goes on ignoring hangups, but programs that tests start do not inherit a handler.
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    if not _IS_XDIST_WORKER:
        # Not pytest's tmp_path: the user that the server runs as cannot enter its parents.
        folder = tempfile.mkdtemp(prefix="horsies-test-", dir=shared_memory_folder())
        Path(folder).chmod(0o755)
        os.environ[CLUSTER_FOLDER] = tempfile.tempdir = os.environ["TMPDIR"] = folder
        os.environ[LINGER_VARIABLE] = "0"  # the next test may delete the folder
        # Hundreds of interpreters are started; without a bytecode cache each would compile our code again.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """Freeze the collected tests: they live as long as the run, and the garbage collector can skip them."""
    gc.freeze()


def pytest_unconfigure() -> None:
    if not _IS_XDIST_WORKER:
        shutil.rmtree(os.environ.pop(CLUSTER_FOLDER), ignore_errors=True)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove HORSIES_* variables, so that the developer's environment does not affect tests."""
    for name in list(os.environ):
        if (name.startswith("HORSIES_") and name not in {CLUSTER_FOLDER, LINGER_VARIABLE}) or name in {
            "DATABASE_URL",
            "NO_COLOR",
        }:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster.in_this_run() as cluster:
        yield cluster


@pytest.fixture
def database_url(cluster: Cluster) -> Iterator[str]:
    """URL of a fresh database with the current schema."""
    with cluster.database(migrated=True) as url:
        yield url


@pytest.fixture
def empty_database_url(cluster: Cluster) -> Iterator[str]:
    """URL of a fresh empty database."""
    with cluster.database(migrated=False) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(ConnectionSpec(url=database_url, masked_url=database_url)) as database:
        yield database


@pytest.fixture
async def empty_database(empty_database_url: str) -> AsyncIterator[Database]:
    async with Database(ConnectionSpec(url=empty_database_url, masked_url=empty_database_url)) as database:
        yield database
