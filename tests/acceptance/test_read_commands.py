"""Commands that read: queues, workers, runs, schedules and events."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from horsies.model.events import EventRecord
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.operators import EventStore
from tests.support.cli import Executable
from tests.support.rows import insert, insert_node, insert_run, insert_task, insert_worker
from tests.support.workers import worker_process

QUEUE = {
    "name",
    "priority",
    "max_concurrency",
    "paused",
    "paused_by",
    "pause_reason",
    "pending",
    "delayed",
    "claimed",
    "running",
    "oldest_due_age_s",
    "finished_last_minute",
    "failed_last_minute",
}
WORKER = {
    "id",
    "hostname",
    "pid",
    "version",
    "state",
    "queues",
    "processes",
    "started_at",
    "last_heartbeat_at",
    "heartbeat_age_s",
    "is_stale",
    "tasks_running",
    "tasks_claimed",
    "cpu_percent",
    "memory_mb",
    "listener",
    "listening_since",
    "outage_grace_until",
    "disabled_operations",
}
RUN = {
    "id",
    "name",
    "status",
    "definition_key",
    "on_error",
    "generation",
    "parent_id",
    "root_id",
    "depth",
    "created_at",
    "started_at",
    "completed_at",
    "result",
    "error",
    "counts",
    "nodes",
}
NODE = {
    "index",
    "node_id",
    "name",
    "status",
    "join",
    "min_success",
    "allow_failed_deps",
    "dependencies",
    "task_id",
    "sub_workflow_id",
    "queue",
    "priority",
    "started_at",
    "completed_at",
    "error_code",
}

HOSTILE = "\x1b]52;c;evil\x07[/bold]\u202e"


@pytest.fixture
def horsies(tmp_path: Path, database_url: str) -> Executable:
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


async def _record(url: str, event: EventRecord) -> None:
    """Insert an event and notify listeners, as a worker does."""
    async with Database(ConnectionSpec(url=url, masked_url=url)) as database:
        await EventStore(database).record(event)


def _stored(work: Coroutine[Any, Any, UUID]) -> UUID:
    return asyncio.run(work)


def test_queue_list_has_documented_fields(horsies: Executable, database_url: str) -> None:
    _stored(insert_task(database_url, queue_name="mail"))
    (queue,) = horsies("queue", "list", "--json").document["queues"]
    assert queue.keys() >= QUEUE
    assert (queue["name"], queue["pending"], queue["paused"]) == ("mail", 1, False)
    assert "no worker" in horsies("queue", "list").stdout


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_invalid_queue_name_is_a_usage_error(horsies: Executable, verb: str) -> None:
    refused = horsies("queue", verb, "")
    assert (refused.code, "invalid queue name" in refused.stderr, "-->" in refused.stderr) == (2, True, False)


def test_paused_queue_shows_actor_and_reason(horsies: Executable) -> None:
    horsies("queue", "pause", "mail", "--as", "ana", "--reason", "smtp is down")
    assert "paused by ana: smtp is down" in horsies("queue", "list").stdout


def test_queue_list_creates_no_tables(tmp_path: Path, empty_database_url: str) -> None:
    horsies = Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": empty_database_url})
    answer = horsies("queue", "list", "--json")
    assert (answer.code, answer.document) == (0, {"queues": []})
    assert "horsies db migrate" in answer.stderr
    assert horsies("db", "status", "--json").document["tables"] == []


def test_worker_list_marks_silent_worker_as_stale(horsies: Executable, database_url: str) -> None:
    live = _stored(insert_worker(database_url))
    silent = _stored(insert_worker(database_url, last_heartbeat_at=datetime.now(UTC) - timedelta(hours=1)))
    document = horsies("workers", "list", "--json").document
    assert set(document) == {"workers", "warnings"}
    assert document["workers"][0].keys() >= WORKER
    assert [(each["id"], each["is_stale"]) for each in document["workers"]] == [(str(live), False), (str(silent), True)]
    stale = horsies("workers", "list", "--stale").stdout
    assert str(silent)[-8:] in stale
    assert str(live)[-8:] not in stale
    assert horsies("workers", "list", "--stale", "--threshold", "2h").stdout == ""
    assert str(live)[-8:] in horsies("workers", "list", "--stale", "--threshold", "0s").stdout


def test_worker_that_missed_a_heartbeat_is_listed_as_late(horsies: Executable, database_url: str) -> None:
    _stored(insert_worker(database_url, last_heartbeat_at=datetime.now(UTC) - timedelta(seconds=55)))
    listed = horsies("workers", "list").stdout
    assert "late" in listed
    assert "running" not in listed


def test_recently_killed_worker_is_listed_as_silent(horsies: Executable, database_url: str) -> None:
    _stored(insert_worker(database_url, last_heartbeat_at=datetime.now(UTC) - timedelta(minutes=2)))
    answer = horsies("workers", "list")
    assert "silent" in answer.stdout
    assert "running" not in answer.stdout
    assert "silent since" in answer.stderr
    (worker,) = horsies("workers", "list", "--json").document["workers"]
    assert (worker["state"], worker["is_silent"], worker["is_stale"]) == ("running", True, False)
    assert horsies("workers", "ping", "--timeout", "10ms").code == 1


@pytest.mark.parametrize("part", ["children", "listener"])
def test_worker_that_runs_with_less_is_listed_as_degraded(horsies: Executable, database_url: str, part: str) -> None:
    _stored(insert_worker(database_url, health={part: "degraded"}))
    assert "degraded" in horsies("workers", "list").stdout


def test_full_option_shows_full_worker_ids(horsies: Executable, database_url: str) -> None:
    worker = _stored(insert_worker(database_url))
    assert str(worker) not in horsies("workers", "list").stdout
    assert str(worker) in horsies("workers", "list", "--full").stdout


def test_ping_accepts_short_worker_id(horsies: Executable, database_url: str) -> None:
    silent, _ = _stored(insert_worker(database_url)), _stored(insert_worker(database_url))
    answer = horsies("workers", "ping", "--worker", str(silent)[-8:], "--timeout", "10ms", "--json")
    assert [(each["id"], each["answered"]) for each in answer.document["workers"]] == [(str(silent), False)]
    assert horsies("workers", "ping", "--worker", "0badcafe").code == 5


async def test_ping_lists_live_workers_and_reports_silent_one(horsies: Executable, database_url: str) -> None:
    async with worker_process(database_url, "--processes", "1") as worker:
        answer = await asyncio.to_thread(horsies, "workers", "ping", "--timeout", "20s", "--json")
        (only,) = answer.document["workers"]
        assert (answer.code, only["pid"], only["answered"]) == (0, worker.pid, True)
        one = await asyncio.to_thread(horsies, "workers", "ping", "--worker", only["id"], "--timeout", "20s")
        assert (one.code, "yes" in one.stdout) == (0, True)
        patient = {"worker_stale_threshold_ms": 300_000}
        await insert_worker(database_url, hostname="gone", recovery_config=patient)
        missed = await asyncio.to_thread(horsies, "workers", "ping", "--timeout", "500ms")
    assert missed.code == 1
    assert "gone:7" in missed.stdout


def test_workflow_show_has_documented_fields_and_tree(horsies: Executable, database_url: str) -> None:
    run = _stored(insert_run(database_url, output_task_index=3))

    async def store() -> None:
        await insert_node(database_url, run, 0, status="COMPLETED")
        await insert_node(database_url, run, 1, status="FAILED", error={"error_code": "TIMEOUT"})
        skipped = {"error_code": "UPSTREAM_SKIPPED", "message": "skipped because node:1 did not complete"}
        await insert_node(database_url, run, 2, 0, 1, status="SKIPPED", error=skipped)
        await insert_node(database_url, run, 3, 0, 1, 2, join_type="quorum", min_success=2)

    asyncio.run(store())
    document = horsies("workflow", "show", str(run), "--json").document
    assert document.keys() >= RUN
    assert document["nodes"][0].keys() >= NODE
    assert document["counts"] == {"COMPLETED": 1, "FAILED": 1, "SKIPPED": 1, "PENDING": 1}
    edges = [(edge["from"], edge["to"]) for edge in document["edges"]]
    assert (document["output_index"], edges) == (3, [(0, 2), (1, 2), (0, 3), (1, 3), (2, 3)])
    facts, _, tree = horsies("workflow", "show", str(run)).stdout.partition("\n\n")
    shown = dict(line.split(maxsplit=1) for line in facts.splitlines())
    assert list(shown) == ["id", "name", "status", "nodes", "age", "created", "on_error"]
    assert re.fullmatch(r"\d\.\ds", shown["age"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", shown["created"])
    drawn = tree.splitlines()
    assert drawn == [
        "├─ [0] node:0 (step_0)  COMPLETED",
        "│  ├─ [2] node:2 (step_2)  SKIPPED  all of 0, 1  skipped because node:1 did not complete",
        "│  │  └─ see [3]",
        "│  └─ [3] node:3 (step_3)  PENDING  2 of 0, 1, 2  ★ output",
        "└─ [1] node:1 (step_1)  FAILED  TIMEOUT",
        "   ├─ see [2]",
        "   └─ see [3]",
    ]


def test_workflow_show_prints_error_and_result_for_people(horsies: Executable, database_url: str) -> None:
    error = {"error_code": "TIMEOUT", "message": "too slow", "exception": {"traceback": "Traceback:\n  line 1"}}
    result = {"err": {"error_code": "UPSTREAM_SKIPPED", "data": {"password": "hunter2"}}}
    run = _stored(insert_run(database_url, status="FAILED", error=error, result=result))
    shown = horsies("workflow", "show", str(run)).stdout
    assert "\nError\n  failed: TIMEOUT: too slow\n  Traceback:\n    line 1\n" in shown
    assert shown.endswith('\nResult\n  failed: UPSTREAM_SKIPPED\n  data: {"password": "***"}\n')


def test_workflow_list_filters_by_status_and_unknown_run_exits_5(horsies: Executable, database_url: str) -> None:
    paused = _stored(insert_run(database_url, status="PAUSED"))
    _stored(insert_run(database_url))
    document = horsies("workflow", "list", "--status", "paused", "--json").document
    assert [run["id"] for run in document["workflows"]] == [str(paused)]
    assert str(paused) in horsies("workflow", "list").stdout
    assert horsies("workflow", "show", str(uuid4())).code == 5
    assert horsies("workflow", "list", "--status", "nope").code == 2


def test_configured_schedules_are_listed_before_first_run(horsies: Executable) -> None:
    (horsies.cwd / "horsies.toml").write_text(
        '[[schedule.entries]]\nname = "night"\ntask_name = "etl.run"\npattern = {type = "daily", time = "02:00"}\n'
    )
    (schedule,) = horsies("schedule", "list", "--json").document["schedules"]
    assert (schedule["name"], schedule["target"], schedule["run_count"]) == ("night", "etl.run", 0)
    assert "daily 02:00" in horsies("schedule", "list").stdout


def test_events_print_one_line_each_as_text_and_json(horsies: Executable, database_url: str) -> None:
    task = _stored(insert_task(database_url))
    asyncio.run(
        insert(database_url, "horsies_events", kind="task_recovered", task_id=task, evidence={"decision": "retry"})
    )
    asyncio.run(insert(database_url, "horsies_events", kind="worker_lost"))
    lines = [json.loads(line) for line in horsies("events", "--json").stdout.splitlines()]
    assert [(line["kind"], line["evidence"]) for line in lines] == [
        ("task_recovered", {"decision": "retry"}),
        ("worker_lost", {}),
    ]
    (shown,) = horsies("events", "--kind", "task_recovered").stdout.splitlines()
    assert f"task_recovered  task {str(task)[-8:]}  decision=retry" in shown


def test_events_are_followed_until_interrupted(horsies: Executable, database_url: str) -> None:
    asyncio.run(insert(database_url, "horsies_events", kind="before"))
    command = [sys.executable, "-m", "horsies_ops.cli", "events", "--follow", "--json", "--database-url", database_url]
    with subprocess.Popen(command, cwd=horsies.cwd, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            assert json.loads(following.stdout.readline())["kind"] == "before"
            asyncio.run(_record(database_url, EventRecord(kind="after")))
            assert json.loads(following.stdout.readline())["kind"] == "after"
        finally:
            following.terminate()
    assert following.returncode == 130


def test_read_commands_escape_control_sequences(horsies: Executable, database_url: str) -> None:
    run = _stored(insert_run(database_url, name=HOSTILE, error={"error_code": HOSTILE}, status="FAILED"))

    async def store() -> None:
        await insert_node(database_url, run, 0, task_name=HOSTILE, status="FAILED", error={"error_code": HOSTILE})
        await insert_task(database_url, queue_name=HOSTILE)
        await insert_worker(database_url, hostname=HOSTILE, queues=[HOSTILE], health={"warnings": [HOSTILE]})
        await insert(database_url, "horsies_events", kind=HOSTILE, evidence={HOSTILE: HOSTILE})
        await insert(database_url, "horsies_schedule_state", schedule_name=HOSTILE, config_hash="")

    asyncio.run(store())
    for command in (
        ("queue", "list"),
        ("workers", "list"),
        ("workflow", "list"),
        ("workflow", "show", str(run)),
        ("schedule", "list"),
        ("events",),
    ):
        for output in ((), ("--json",)):
            answer = horsies(*command, *output)
            assert answer.code == 0, answer.stderr
            assert "evil" in answer.stdout
            assert not {"\x1b", "\x07", "\u202e"} & set(answer.stdout + answer.stderr)
