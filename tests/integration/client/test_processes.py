"""Sends from threads, forked children, several apps, and at interpreter exit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from horsies import HorsiesError
from horsies.embedded import EmbeddedServer
from tests.support.databases import temporary_cluster_folder
from tests.support.store import count_tasks, fetch_rows, make_app

ROOT = Path(__file__).parents[3]
PRELUDE = """
import asyncio, atexit, gc, os, sys, threading, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from tests.support.store import fetch_rows, make_app
url = sys.argv[1]
app = make_app(url)
double = app.tasks["double"]
"""


def run_script(script: str, url: str, *, before: str = "") -> str:
    """Run a script that has an app and return its stdout; it must exit with 0 and print nothing else."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "worker")])
    done = subprocess.run(
        [sys.executable, "-c", before + PRELUDE + script, url],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=30,
    )
    # In an image whose only account is nobody, the embedded server says so.
    errors = [line for line in done.stderr.splitlines() if "runs as nobody" not in line]
    assert (done.returncode, errors) == (0, [])
    return done.stdout


def test_threads_send_through_one_pool(database_url: str) -> None:
    app = make_app(database_url, settings={"pool_size": 2, "max_overflow": 0})
    with ThreadPoolExecutor(10) as threads:
        results = list(threads.map(app.tasks["double"].send, range(100)))
    assert all(result.is_ok() for result in results)
    our_connections = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'horsies %'"
    )
    assert fetch_rows(database_url, our_connections)[0][0] <= 2
    assert count_tasks(database_url) == 100
    app.close()


def test_consecutive_event_loops_can_send(database_url: str) -> None:
    app = make_app(database_url)
    for number in range(3):
        assert asyncio.run(app.tasks["double"].send_async(number)).is_ok()
    assert count_tasks(database_url) == 3


def test_two_apps_in_one_process_are_independent(database_url: str) -> None:
    one, other = make_app(database_url), make_app(database_url)
    assert one.get_broker() is not other.get_broker()
    assert one.get_broker() is one.get_broker()
    handle = one.tasks["double"].send(5).unwrap()
    one.close()
    assert other.get_task_info(handle.task_id).unwrap() is not None
    other.close()


def test_close_can_be_repeated_and_a_send_reopens(database_url: str) -> None:
    app = make_app(database_url)
    app.close()
    app.tasks["double"].send(5).unwrap()
    app.close()
    app.close()
    assert app.tasks["double"].send(5).is_ok()
    app.close()


async def test_blocking_close_inside_a_loop_is_rejected(database_url: str) -> None:
    app = make_app(database_url)
    await app.tasks["double"].send_async(5)
    with pytest.raises(HorsiesError):
        app.close()
    await app.close_async()
    await app.close_async()


def test_process_exit_without_close_prints_nothing(database_url: str) -> None:
    assert run_script("double.send(1).unwrap().get(0)\n", database_url) == ""
    assert count_tasks(database_url) == 1


def test_first_send_in_an_atexit_handler_works(database_url: str) -> None:
    script = "atexit.register(lambda: print(double.send(1).is_ok()))\n"
    assert run_script(script, database_url) == "True\n"
    assert count_tasks(database_url) == 1


def test_later_send_in_an_atexit_handler_works(database_url: str) -> None:
    script = "double.send(1).unwrap()\natexit.register(lambda: print(double.send(2).is_ok()))\n"
    assert run_script(script, database_url) == "True\n"
    assert count_tasks(database_url) == 2


@pytest.fixture
def embedded_url() -> Iterator[str]:
    """The URL of a cluster that exists, so that its first user reports no set-up."""
    with temporary_cluster_folder() as folder:
        EmbeddedServer(folder, durable=False).use().release()
        yield f"embedded://{folder}"


def test_atexit_handler_can_use_the_embedded_server(embedded_url: str) -> None:
    script = "atexit.register(lambda: print(double.send(2).is_ok()))\nprint(double.send(1).is_ok())\n"
    assert run_script(script, embedded_url) == "True\nTrue\n"
    assert not EmbeddedServer(Path(embedded_url.removeprefix("embedded://"))).status().running


def test_early_atexit_handler_restarts_the_embedded_server(embedded_url: str) -> None:
    handler = "import atexit\natexit.register(lambda: print(double.send(2).is_ok()))\n"
    assert run_script("print(double.send(1).is_ok())\n", embedded_url, before=handler) == "True\nTrue\n"


FORK = """
first = double.send(1).unwrap()
first.get(50)
child = os.fork()
if child == 0:
    double.send(2).unwrap()
    gc.collect()
    {exit_call}
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
def run():
    fetch_rows(url, "UPDATE horsies_tasks SET status = 'COMPLETED', result = '{{\\"ok\\": 10}}', terminal_at = now()")
    fetch_rows(url, "SELECT pg_notify('horsies_task_done', $1)", first.task_id)
threading.Timer(0.2, run).start()
print(first.get(3000).ok_value)
print(double.send(3).is_ok())
"""


@pytest.mark.parametrize("exit_call", ["sys.exit(0)", "os._exit(0)"])
def test_forked_child_can_send_without_disturbing_the_parent(database_url: str, exit_call: str) -> None:
    assert run_script(FORK.format(exit_call=exit_call), database_url) == "10\nTrue\n"
    assert count_tasks(database_url) == 3


def test_children_forked_during_sends_can_send(database_url: str) -> None:
    script = """
is_done = threading.Event()
def work():
    while not is_done.is_set():
        double.send(1).unwrap()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
codes = []
for _ in range(10):
    if (child := os.fork()) == 0:
        os._exit(0 if double.send(2).is_ok() else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
is_done.set()
for thread in threads:
    thread.join()
print(codes)
"""
    assert run_script(script, database_url) == f"{[0] * 10}\n"


def test_child_forked_inside_a_loop_can_send(database_url: str) -> None:
    script = """
async def main():
    (await double.send_async(1)).unwrap()
    child = os.fork()
    if child == 0:
        os._exit(0 if double.send(2).is_ok() and asyncio.run(double.send_async(3)).is_ok() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print((await double.send_async(4)).is_ok())
asyncio.run(main())
"""
    assert run_script(script, database_url) == "0\nTrue\n"
    assert count_tasks(database_url) == 4
