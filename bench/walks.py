"""The three walks: which product files execute while a task is sent, run and recovered.

Each walk really happens on an embedded PostgreSQL, with real workers that are traced from their start (see
`bench.call_trace`). A file counts once, whichever process executes it; the standard library, dependencies, `__init__`
files and the code of modules themselves (imports) do not count. What counts on a walk:

- send: what the sending process executes between the call of `task.send()` and its return. The first send of a process
  also connects; it is shown apart.
- run: what the worker and its child execute between the commit of the claim and the commit of the outcome.
- recover: what the asyncio task of the surviving worker's reaper executes from its last wake-up to the commit of the
  retry. The task belonged to a worker that was killed with SIGKILL.

Work that only happens to run at the same time (heartbeats, polls, summaries) is left out by repetition: every walk is
made several times, after a warm-up, and a file counts only if it executes every time.

Commit times come from PostgreSQL (`track_commit_timestamp`), so no walk depends on names in the product.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.call_trace import ROOT, Call, environment_to_trace, read_calls, trace_calls
from bench.server import connect, create_tables
from horsies import Horsies
from horsies.embedded import EmbeddedServer

ARGUMENTS, KEYWORDS = ("world",), {"times": 2}
REPEATS = 10
WARM_UPS = 3
DEAD_WORKERS = 3
LIMIT_S = 60
PAUSE_S = 0.27
"""Between two tasks; not in step with anything that a worker does periodically."""
REAPER_FOLDER = "worker/horsies/recovery/"
"""The asyncio task that executes its files last before a retry is the reaper's."""
REAPER_INTERVAL_S = 1.0
CHECK_INTERVAL = "HORSIES_RECOVERY__CHECK_INTERVAL_MS"
FAST_RECOVERY = {
    CHECK_INTERVAL: f"{REAPER_INTERVAL_S * 1000:.0f}",
    "HORSIES_RECOVERY__RUNNER_HEARTBEAT_INTERVAL_MS": "1000",
    "HORSIES_RECOVERY__CLAIMER_HEARTBEAT_INTERVAL_MS": "1000",
    "HORSIES_RECOVERY__CLAIMED_STALE_THRESHOLD_MS": "2000",
    "HORSIES_RECOVERY__RUNNING_STALE_THRESHOLD_MS": "2000",
    "HORSIES_RECOVERY__WORKER_STALE_THRESHOLD_MS": "2000",
}

NO_RECOVERY = {**FAST_RECOVERY, CHECK_INTERVAL: "600000"}
"""The same thresholds, for workers that die before their first pass."""

LOG_STATUS_CHANGES = """
CREATE TABLE status_changes (
    task_id     uuid,
    status      text,
    transaction xid8 DEFAULT pg_current_xact_id()
);
CREATE FUNCTION log_status_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO status_changes (task_id, status) VALUES (NEW.id, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER log_status_change AFTER UPDATE ON horsies_tasks
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION log_status_change();
"""
COMMITTED = """
SELECT (1e9 * extract(epoch FROM pg_xact_commit_timestamp(transaction::xid)))::bigint AS at_ns
  FROM status_changes WHERE task_id = $1::text::uuid AND status = $2
"""
STATUS = "SELECT status FROM horsies_tasks WHERE id = $1::text::uuid"
OWNER_PID = """
SELECT worker.pid FROM horsies_tasks AS task JOIN horsies_workers AS worker ON worker.id = task.claimed_by_worker_id
 WHERE task.id = $1::text::uuid AND task.status = 'RUNNING'
"""
STARTED = "SELECT count(*) FROM horsies_workers WHERE pid = $1 AND state = 'running'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The files of one walk in the order of their first execution, each with the processes that execute it."""

    name: str
    goal: int | None
    files: dict[str, list[str]]


def make_walks() -> list[Walk]:
    """Make all walks; takes about half a minute."""
    with tempfile.TemporaryDirectory(prefix="horsies-walks-") as folder, _server(Path(folder)) as url:
        os.environ["HORSIES_BROKER__DATABASE_URL"] = url
        asyncio.run(create_tables(url))
        _fetch(url, LOG_STATUS_CHANGES)
        from bench.noop_app import app  # it reads the URL from the environment

        with closing(app):
            return [
                *_walks_of_send(app, Path(folder, "send")),
                _walk_of_run(app, url, Path(folder, "run")),
                _walk_of_recovery(app, url, Path(folder, "recover")),
            ]


def _walks_of_send(app: Horsies, trace: Path) -> list[Walk]:
    spans: list[tuple[int, int]] = []
    task = app.tasks["greet"]
    trace.mkdir()
    trace_calls(trace)
    for _ in range(WARM_UPS + REPEATS):
        start_ns = time.time_ns()
        sent = task.send(*ARGUMENTS, **KEYWORDS)
        spans.append((start_ns, time.time_ns()))
        sent.unwrap()
    sys.setprofile(None)
    calls = read_calls(trace)
    runs = [_within(calls, *span) for span in spans]
    return [
        _walk("send() -> committed row", 10, runs[WARM_UPS:], {}),
        _walk("first send() of a process, which connects", None, runs[:1], {}),
    ]


def _walk_of_run(app: Horsies, url: str, trace: Path) -> Walk:
    spans: list[tuple[int, int]] = []
    with _worker(url, trace) as worker:
        for _ in range(WARM_UPS + REPEATS):
            time.sleep(PAUSE_S)
            task_id = app.tasks["greet"].send(*ARGUMENTS, **KEYWORDS).unwrap().task_id
            _until(lambda task_id=task_id: _fetch(url, STATUS, task_id) == "COMPLETED")
            spans.append((_fetch(url, COMMITTED, task_id, "RUNNING"), _fetch(url, COMMITTED, task_id, "COMPLETED")))
    calls = read_calls(trace)
    runs = [_within(calls, *span) for span in spans[WARM_UPS:]]
    return _walk("claimed row -> run in a child -> outcome stored", 18, runs, {worker.pid: "worker"})


def _walk_of_recovery(app: Horsies, url: str, trace: Path) -> Walk:
    retried_at: list[int] = []
    with ExitStack() as stack:
        victims = [stack.enter_context(_worker(url, trace / str(n), NO_RECOVERY)) for n in range(DEAD_WORKERS)]
        task_ids = [app.tasks["sleep"].send().unwrap().task_id for _ in victims]
        _until(lambda: all(_fetch(url, OWNER_PID, task_id) for task_id in task_ids))
        owners = {_fetch(url, OWNER_PID, task_id): task_id for task_id in task_ids}
        survivor = stack.enter_context(_worker(url, trace / "survivor", FAST_RECOVERY))
        for victim in victims:
            task_id = owners[victim.pid]
            victim.kill()
            victim.wait()
            _until(lambda task_id=task_id: _fetch(url, STATUS, task_id) == "PENDING")
            retried_at.append(_fetch(url, COMMITTED, task_id, "PENDING"))
    calls = [call for call in read_calls(trace / "survivor") if call.pid == survivor.pid]
    runs = [_last_pass_of_reaper(calls, at_ns) for at_ns in retried_at]
    return _walk("dead worker -> its task retried by another", 12, runs, {survivor.pid: "worker"})


def _last_pass_of_reaper(calls: Sequence[Call], end_ns: int) -> list[Call]:
    """What the reaper's asyncio task executed since it last woke from the pause between two passes."""
    before = [call for call in calls if call.at_ns <= end_ns]
    reaper = next(call.asyncio_task for call in reversed(before) if call.file.startswith(REAPER_FOLDER))
    own = [call for call in before if call.asyncio_task == reaper]
    pauses = [n for n in range(1, len(own)) if own[n].at_ns - own[n - 1].at_ns > REAPER_INTERVAL_S * 1e9 / 2]
    return own[pauses[-1] :]


def _within(calls: Sequence[Call], start_ns: int, end_ns: int) -> list[Call]:
    return [call for call in calls if start_ns <= call.at_ns <= end_ns]


def _walk(name: str, goal: int | None, runs: Sequence[Sequence[Call]], processes: dict[int, str]) -> Walk:
    """The files that executed in each of the runs, in the order of the first."""
    executed = [{call.file for call in run} for run in runs]
    common = executed[0].intersection(*executed[1:])
    files: dict[str, list[str]] = {}
    for call in runs[0]:
        process = processes.get(call.pid, "child") if processes else "sender"
        if call.file in common and process not in files.setdefault(call.file, []):
            files[call.file].append(process)
    return Walk(name=name, goal=goal, files=files)


@contextmanager
def _server(folder: Path) -> Generator[str]:
    """The URL of a new server that records when each transaction is committed."""
    folder.chmod(0o755)  # the server may run under an account of its own
    server = EmbeddedServer(folder / "pg", linger_s=0)
    with server.use() as lease:
        _fetch(lease.url, "ALTER SYSTEM SET track_commit_timestamp = on")
    with server.use() as lease:  # the setting needs a restart
        yield lease.url


@contextmanager
def _worker(url: str, trace: Path, environment: dict[str, str] | None = None) -> Generator[subprocess.Popen[bytes]]:
    """A traced `horsies worker` with one child, ready to claim."""
    trace.mkdir(parents=True)
    command = [sys.executable, "-m", "horsies_ops.cli", "worker", f"{ROOT / 'bench/noop_app.py'}:app", "--processes=1"]
    with (trace / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment_to_trace(trace), **(environment or {})},
            stdout=log,
            stderr=log,
        )
    try:
        _until(lambda: process.poll() is not None or _fetch(url, STARTED, process.pid))
        if process.poll() is not None:
            raise RuntimeError(f"the worker exited with status {process.returncode}:\n{(trace / 'log').read_text()}")
        yield process
    finally:
        process.terminate()
        process.wait()


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened within {LIMIT_S} s")
        time.sleep(0.05)


def _fetch(url: str, statement: str, *arguments: object) -> Any:
    """The first value of the answer, if there is one."""

    async def fetch() -> Any:
        async with connect(url) as connection:
            if not arguments:
                return await connection.execute(statement)
            return await connection.fetchval(statement, *arguments)

    return asyncio.run(fetch())
