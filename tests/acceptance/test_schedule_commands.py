"""`horsies schedule` and `horsies scheduler`, and a worker that fires schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Executable
from tests.support.databases import wait_until
from tests.support.store import fetch_rows

APP = """
from horsies import Horsies, IntervalSchedule, TaskError, TaskResult

app = Horsies()


@app.scheduled(IntervalSchedule(seconds=1), name="tick", missed="all")
@app.task("tick")
def tick(n: int = 1) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)
"""


@pytest.fixture
def horsies(tmp_path: Path, database_url: str) -> Executable:
    (tmp_path / "shop.py").write_text(APP)
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


def count(url: str, status: str) -> int:
    return fetch_rows(url, "SELECT count(*)::int FROM horsies_tasks WHERE status = $1", status)[0][0]


def test_scheduler_alone_and_worker_fire_each_slot(horsies: Executable, database_url: str) -> None:
    assert horsies("scheduler", "shop.py", "--dry-run").stdout.startswith("tick: 20")
    with horsies.start("scheduler", "shop.py") as scheduler:
        scheduler.wait_for_output("schedule fired")
        assert scheduler.stop() == 0
    assert count(database_url, "PENDING") >= 1
    with horsies.start("worker", "shop.py", "--processes", "1") as worker:
        worker.wait_for_output("schedule fired")
        wait_until(lambda: count(database_url, "COMPLETED") >= 1)  # on a busy machine its child starts later
        assert worker.stop() == 0
    gaps = """SELECT count(*)::int FROM (SELECT slot_at - lag(slot_at) OVER (ORDER BY slot_at) AS gap
                FROM horsies_schedule_runs WHERE outcome = 'fired') AS slots WHERE gap <> interval '1 second'"""
    assert fetch_rows(database_url, gaps)[0][0] == 0
    assert fetch_rows(database_url, "SELECT count(*)::int FROM horsies_schedule_participants")[0][0] == 0


def test_worker_without_scheduler_fires_nothing(horsies: Executable, database_url: str) -> None:
    with horsies.start("worker", "shop.py", "--processes", "1", HORSIES_WORKER__WITH_SCHEDULER="false") as worker:
        worker.wait_for_output("worker started")
        assert worker.stop() == 0
    assert fetch_rows(database_url, "SELECT count(*)::int FROM horsies_schedule_state")[0][0] == 0


def test_commands_read_and_change_schedules(horsies: Executable, database_url: str) -> None:
    assert horsies("schedule", "sync", "shop.py").stdout == "1 schedules changed\n"
    assert horsies("schedule", "pause", "tick", "--reason", "stocktaking").stdout == "tick paused\n"
    (row,) = horsies("schedule", "list", "--json").document["schedules"]
    assert (row["name"], row["paused"], row["pause_reason"]) == ("tick", True, "stocktaking")
    assert len(horsies("schedule", "next", "tick", "--count", "3", "--json").document["slots"]) == 3
    assert horsies("schedule", "run", "tick", "--json").document["affected"] == 1
    backfill = ("schedule", "backfill", "tick", "--from", "30s")
    assert horsies(*backfill).code == 2
    assert horsies(*backfill, "--dry-run").stdout.startswith("would fire ")
    assert horsies(*backfill, "--yes", "--json").document["affected"] >= 29
    assert horsies("schedule", "history", "tick", "--json").document["runs"][0]["outcome"] == "fired"
    assert "paused by" in horsies("schedule", "show", "tick").stdout
    assert "tick is paused: no slot fires until it is resumed" in horsies("schedule", "next", "tick").stderr
    assert horsies("schedule", "show", "tick", "--json").document["target"] == "tick"
    assert horsies("schedule", "resume", "tick").stdout == "tick resumed\n"
    assert horsies("schedule", "show", "nope").code == 5
    assert horsies("schedule", "backfill", "tick", "--from", "30d", "--yes").code == 6
    fetch_rows(database_url, "UPDATE horsies_schedule_state SET next_run_at = now() - interval '5 minutes'")
    assert horsies("schedule", "list", "--overdue", "--exit-code").code == 3
    assert horsies("schedule", "forget", "tick").stdout == "tick forgotten\n"


def test_name_may_contain_braces(horsies: Executable, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.replace('name="tick"', 'name="{tick}"'))
    assert horsies("schedule", "sync", "shop.py").code == 0
    assert horsies("schedule", "pause", "{tick}").stdout == "{tick} paused\n"
    assert horsies("schedule", "run", "{tick}").stdout.startswith("{tick} started: ")


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ('timezone="Mars/Olympus"', "HRS-205", "IANA"),
        ('queue_name="nope"', "HRS-200", "queue"),
        ('kwargs={"m": 1}', "HRS-205", "invalid arguments"),
    ],
)
def test_invalid_schedule_stops_the_start(
    horsies: Executable, tmp_path: Path, change: str, code: str, text: str
) -> None:
    (tmp_path / "shop.py").write_text(APP.replace('missed="all"', change))
    for command in ("worker", "scheduler", "check"):
        failed = horsies(command, "shop.py")
        assert (failed.code, code in failed.stderr + failed.stdout, text in failed.stderr + failed.stdout) == (
            1,
            True,
            True,
        )


def test_check_warns_of_a_local_time_that_does_not_exist(horsies: Executable, tmp_path: Path) -> None:
    entry = APP.replace("IntervalSchedule(seconds=1)", '"30 2 * * *"').replace(
        'missed="all"', 'timezone="Europe/Vienna"'
    )
    (tmp_path / "shop.py").write_text(entry)
    checked = horsies("check", "shop.py", "--json")
    assert checked.code == 0
    assert "02:30 does not exist in Europe/Vienna; it is skipped" in checked.document["warnings"][0]


@pytest.mark.parametrize("time", ["abc", "2026-13-01", "99999999999d"])
def test_backfill_says_which_times_it_takes(horsies: Executable, time: str) -> None:
    refused = horsies("schedule", "backfill", "tick", "--from", time)
    assert (refused.code, f"--from: invalid time '{time}' (examples: 2026-03-28, " in refused.stderr) == (2, True)
