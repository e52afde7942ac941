"""`horsies sweep` as a process."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.support.cli import Executable
from tests.support.rows import CRASH_RETRY, insert_listening_worker, insert_owned_task, insert_task, seconds_ago
from tests.support.store import fetch_rows

ONE_TASK = {
    "id",
    "name",
    "queue",
    "state",
    "owner",
    "owner_state",
    "heartbeat_age_s",
    "threshold_s",
    "resilient",
    "decision",
    "reason",
    "retries_left",
    "run_at",
    "hook",
    "applied",
}

HOOKS = """
from horsies import Horsies, Recovery

app = Horsies()

@app.on_recovery
def leave_it(context):
    print("asked about", context.task.task_name)
    return Recovery.skip()
"""


@pytest.fixture
def at(horsies: Executable, database_url: str) -> Executable:
    horsies.environment["HORSIES_BROKER__DATABASE_URL"] = database_url
    return horsies


async def _a_crash(url: str, **columns: Any) -> dict[str, UUID]:
    """A live worker, a dead worker and its stale tasks."""
    await insert_listening_worker(url)
    gone = await insert_listening_worker(url, silent_s=900)
    return {
        "requeue": await insert_owned_task(url, "CLAIMED", owner=gone, silent_s=900),
        "retry": await insert_owned_task(
            url, "RUNNING", owner=gone, silent_s=900, task_options=CRASH_RETRY, max_retries=1
        ),
        "fail": await insert_owned_task(url, "RUNNING", owner=gone, silent_s=900, **columns),
        "expire": await insert_task(url, good_until=seconds_ago(60)),
    }


def _crash(url: str, **columns: Any) -> dict[str, UUID]:
    return asyncio.run(_a_crash(url, **columns))


def test_sweep_does_what_the_dry_run_lists(at: Executable, database_url: str) -> None:
    expected = {(str(task_id), decision) for decision, task_id in _crash(database_url).items()}
    looked = at("sweep", "--dry-run", "--json")
    assert looked.code == 0, looked.stderr
    assert {(task["id"], task["decision"]) for task in looked.document["tasks"]} == expected
    assert (looked.document["status"], looked.document["recovered_count"]) == ("would_act", 0)
    assert fetch_rows(database_url, "SELECT count(*) FROM horsies_events") == [(0,)]
    done = at("sweep", "--json")
    assert {(task["id"], task["decision"]) for task in done.document["tasks"] if task["applied"]} == expected
    assert (done.code, done.document["status"], done.document["recovered_count"]) == (0, "done", 3)


def test_sweep_json_has_every_documented_field(at: Executable, database_url: str) -> None:
    _crash(database_url)
    told = at("sweep", "--dry-run", "--json").document
    assert told["thresholds"] == {
        "claimed_s": 120.0,
        "running_s": 300.0,
        "recovery_delay_s": 0.0,
        "resilient_multiplier": 3,
        "source": "fleet",
    }
    assert all(task.keys() >= ONE_TASK for task in told["tasks"])
    assert (told["hooks_loaded"], told["workflows"], told["warnings"], len(told["worker_ids"])) == (False, [], [], 1)


def test_sweep_text_has_one_line_per_task_and_totals(at: Executable, database_url: str) -> None:
    tasks = _crash(database_url)
    looked = at("sweep", "--dry-run")
    lines = looked.stdout.splitlines()
    failed = next(line for line in lines if line.startswith(str(tasks["fail"])))
    assert failed.split()[-4:] == ["5m00s", "fail", "OWNER_LOST", "WORKER_CRASHED"]
    assert "would be: 1 requeued, 1 retried, 1 failed, 1 expired" in lines
    assert at("sweep").stdout.splitlines()[-1] == "1 requeued, 1 retried, 1 failed, 1 expired"


def test_dry_run_lists_silent_tasks_with_what_comes_and_when(at: Executable, database_url: str) -> None:
    gone = asyncio.run(insert_listening_worker(database_url, silent_s=100))
    task_id = asyncio.run(
        insert_owned_task(database_url, "RUNNING", owner=gone, silent_s=100, task_options=CRASH_RETRY, max_retries=1)
    )
    asyncio.run(
        insert_owned_task(
            database_url, "RUNNING", owner=asyncio.run(insert_listening_worker(database_url)), silent_s=20
        )
    )
    output = at("sweep", "--dry-run").stdout
    assert output.startswith("nothing to do\n\n1 task silent for up to 1m4")
    (row,) = [line for line in output.splitlines() if line.startswith(str(task_id))]
    assert " in 3m" in row
    assert row.endswith("retry, attempt 2 of 2")
    (listed,) = at("sweep", "--json", "--worker", str(gone)).document["not_yet_stale"]["tasks"]
    assert (listed["id"], listed["decision"], 180 < listed["due_in_s"] < 200) == (str(task_id), "retry", True)


def test_dry_run_lists_silent_tasks_beside_stale_ones(at: Executable, database_url: str) -> None:
    _crash(database_url)
    gone = asyncio.run(insert_listening_worker(database_url, silent_s=100))
    silent = asyncio.run(insert_owned_task(database_url, "CLAIMED", owner=gone, silent_s=50))
    document = at("sweep", "--dry-run", "--json").document
    assert str(silent) not in {task["id"] for task in document["tasks"]}
    assert [(task["id"], task["decision"]) for task in document["not_yet_stale"]["tasks"]] == [(str(silent), "requeue")]


def test_dry_run_exit_codes(at: Executable, database_url: str) -> None:
    assert (at("sweep", "--dry-run", "--exit-code").code, at("sweep").code) == (0, 0)
    _crash(database_url)
    assert at("sweep", "--dry-run", "--exit-code").code == 3


def test_concurrent_sweep_reports_busy_not_nothing(at: Executable, database_url: str) -> None:
    _crash(database_url)

    async def during() -> Any:
        connection = await asyncpg.connect(database_url)
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(horsies_lock_key('sweep'))")
                return await asyncio.to_thread(at, "sweep", "--json"), await asyncio.to_thread(at, "sweep", "--dry-run")
        finally:
            await connection.close()

    swept, looked = asyncio.run(during())
    assert (swept.code, swept.document["status"]) == (4, "busy")
    assert looked.code == 0


def test_full_outage_grace_exits_4_and_force_skips_it(at: Executable, database_url: str) -> None:
    async def prepare() -> None:
        await insert_listening_worker(database_url, listens_s=5)
        await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=900)

    asyncio.run(prepare())
    held = at("sweep", "--json")
    assert (held.code, held.document["status"], held.document["tasks"][0]["reason"]) == (
        4,
        "outage_grace",
        "outage_grace",
    )
    assert "all stale tasks (1) held back until" in at("sweep").stdout
    assert at("sweep", "--force", "--json").document["recovered_count"] == 1


def test_threshold_below_two_heartbeats_needs_force(at: Executable, database_url: str) -> None:
    _crash(database_url)
    refused = at("sweep", "--threshold", "10s")
    assert refused.code == 2
    assert "two heartbeat intervals" in refused.stderr
    assert at("sweep", "--threshold", "10s", "--force").code == 0


def test_invalid_threshold_is_a_usage_error(at: Executable) -> None:
    refused = at("sweep", "--threshold", "0s", "--force")
    assert (refused.code, "must be a duration such as 90s or 5m" in refused.stderr) == (2, True)


def test_sweep_is_audited_and_dry_run_is_not(at: Executable, database_url: str) -> None:
    tasks = _crash(database_url)
    at("sweep", "--dry-run")
    at("sweep", "--as", "ann", "--reason", "disk full", "--recovery-delay", "5s")
    columns = "actor, via, action, reason, matched, affected, task_ids, filter"
    (row,) = fetch_rows(database_url, f"SELECT {columns} FROM horsies_audit")
    assert row[:6] == ("ann", "cli", "sweep", "disk full", 4, 4)
    assert set(row[6]) == set(tasks.values())
    assert row[7] == '{"recovery_delay_s": 5.0}'


def test_resilient_flag_option_replaces_the_workers_setting(at: Executable, database_url: str) -> None:
    tasks = _crash(database_url, flags={"mine": True})
    told = at("sweep", "--dry-run", "--json", "--resilient-flag", "mine", "--resilient-multiplier", "10").document
    assert str(tasks["fail"]) not in {task["id"] for task in told["tasks"]}


def test_recovery_hooks_run_in_dry_runs(at: Executable, database_url: str) -> None:
    tasks = _crash(database_url)
    (at.cwd / "hooks.py").write_text(HOOKS)
    looked = at("sweep", "--dry-run", "--json", "--app", "hooks.py")
    decisions = {task["id"]: (task["decision"], task["hook"]) for task in looked.document["tasks"]}
    assert looked.document["hooks_loaded"]
    assert decisions[str(tasks["fail"])] == ("hold", "hooks.leave_it")
    at("sweep", "--app", "hooks.py")
    held = "SELECT status, recovery_hold_until > now() FROM horsies_tasks WHERE id = $1"
    assert fetch_rows(database_url, held, tasks["fail"]) == [("RUNNING", True)]


def test_unloadable_app_is_a_warning(at: Executable, database_url: str) -> None:
    _crash(database_url)
    done = at("sweep", "--json", "--app", "nowhere:app")
    assert (done.code, done.document["hooks_loaded"], done.document["recovered_count"]) == (0, False, 3)
    assert "recovery hooks skipped" in done.stderr


def test_sweep_escapes_control_sequences(at: Executable, database_url: str) -> None:
    _crash(database_url, task_name="\x1b]0;gotcha\x07[red]x", queue_name="\x1b[2J")
    shown = at("sweep", "--dry-run")
    assert "\x1b" not in shown.stdout
    assert "\\x1b]0;gotcha" in shown.stdout
    assert "\x1b" not in at("sweep", "--dry-run", "--json").stdout


def test_sweep_of_one_worker(at: Executable, database_url: str) -> None:
    _crash(database_url)
    unknown = "00000000-0000-0000-0000-000000000001"
    assert at("sweep", "--dry-run", "--json", "--worker", unknown).document["tasks"] == []


def test_sweep_accepts_short_worker_id(at: Executable, database_url: str) -> None:
    left = _crash(database_url)
    (gone,) = at("workers", "list", "--stale", "--json").document["workers"]
    found = at("sweep", "--dry-run", "--json", "--worker", gone["id"][-8:]).document["tasks"]
    assert {each["id"] for each in found} == {str(left[decision]) for decision in ("requeue", "retry", "fail")}
    assert at("sweep", "--dry-run", "--worker", "0badcafe").code == 5
