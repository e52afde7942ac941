from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from horsies.model.recovery.decision import DecisionKind
from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.overview import ErrorCount
from horsies_ops.reads.search import Count
from horsies_ops.reads.workflows import WorkflowRow
from horsies_tui.screens.alerts import (
    Alert,
    AlertInputs,
    AlertTarget,
    RunTarget,
    Severity,
    UnservedQueue,
    find_alerts,
)
from tests.support.fake_system.catalog import make_row
from tests.support.rows import NOON, WORKER, make_queue, make_sweep_report, make_swept_task, make_worker

BAD, WARN = Severity.BAD, Severity.WARN
LATE, MINUTES, SECOND = timedelta(minutes=3, seconds=12), timedelta(minutes=1), timedelta(seconds=1)
CLAIMED = make_swept_task(TaskStatus.CLAIMED, decision=DecisionKind.REQUEUE)
LOST = {"state": "lost", "heartbeat_age": timedelta(minutes=6, seconds=10)}


def _failed(name: str, code: str, number: int, status: str = "FAILED") -> ErrorCount:
    return ErrorCount(name=name, code=code, status=status, count=2 * number, last_hour=number)


def _run(status: str, number: int = 1, name: str = "etl") -> WorkflowRow:
    return make_row(WorkflowRow, id=UUID(int=number), name=name, status=status)


@pytest.mark.parametrize(
    ("inputs", "severity", "text"),
    [
        (
            AlertInputs(stale=make_sweep_report(make_swept_task(), make_swept_task(heartbeat_age=6 * MINUTES))),
            BAD,
            "2 RUNNING silent > 5m00s   worst mail.send 11m20s, worker lost",
        ),
        (
            AlertInputs(stale=make_sweep_report(make_swept_task(owner_state="running"))),
            BAD,
            "1 RUNNING silent > 5m00s   worst mail.send 11m20s",
        ),
        (AlertInputs(stale=make_sweep_report(CLAIMED, CLAIMED)), WARN, "2 CLAIMED silent > 2m00s   safe to requeue"),
        (
            AlertInputs(queues=[make_queue(pending=1011, oldest_due_age=LATE, served_by=2)]),
            WARN,
            "queue mail: 1,011 wait, oldest 3m12s (target 1m00s), 2 workers",
        ),
        (
            AlertInputs(queues=[make_queue(pending=3, delayed=2, oldest_due_age=LATE, served_by=0)]),
            BAD,
            "queue mail: no worker serves it, 3 wait, oldest 3m12s",
        ),
        (
            AlertInputs(
                queues=[
                    make_queue(
                        pending=3, oldest_due_age=LATE, paused_at=NOON, paused_by="ana", pause_reason="smtp down"
                    )
                ]
            ),
            WARN,
            'queue mail: paused by ana, 3 wait, oldest 3m12s "smtp down"',
        ),
        (
            AlertInputs(workers=[make_worker(**LOST, tasks_running=3, tasks_claimed=2)]),
            BAD,
            "worker 000000a7 host-3:4121 lost, seen 6m10s ago, holds 5 tasks",
        ),
        (
            AlertInputs(workers=[make_worker(is_silent=True, heartbeat_age=timedelta(minutes=2), tasks_running=1)]),
            WARN,
            "worker 000000a7 host-3:4121 silent, seen 2m00s ago, holds 1 task",
        ),
        (
            AlertInputs(workers=[make_worker(**LOST)]),
            WARN,
            "worker 000000a7 host-3:4121 lost, seen 6m10s ago, holds no tasks",
        ),
        (
            AlertInputs(workers=[make_worker(disabled_operations=("heal workflows",))]),
            WARN,
            "worker 000000a7 host-3:4121: heal workflows keeps failing and is retried rarely",
        ),
        (
            AlertInputs(workers=[make_worker(warnings=("clock is off",))]),
            WARN,
            "worker 000000a7 host-3:4121: clock is off",
        ),
        (
            AlertInputs(
                failed=Count(number=60), errors=[_failed("mail.send", "TIMEOUT", 41), _failed("etl.load", "KEY", 17)]
            ),
            WARN,
            "60 failures in 1h, mostly TIMEOUT in mail.send",
        ),
        (
            AlertInputs(queues=[make_queue(pending=3, oldest_due_age=3 * MINUTES)], idle=7 * MINUTES),
            WARN,
            "nothing finished for 3 min while 3 wait",
        ),
        (AlertInputs(runs=[_run("FAILED")]), WARN, "1 workflow run failed: etl"),
        (
            AlertInputs(runs=[_run("PAUSED", 1), _run("PAUSED", 2, "digest"), _run("PAUSED", 3)]),
            WARN,
            "3 workflow runs paused: etl, digest",
        ),
        (AlertInputs(failed=Count(number=2), errors=[_failed("a", "X", 2)]), WARN, "2 failures in 1h, all X in a"),
        (
            AlertInputs(
                failed=Count(number=6), errors=[_failed("a", "X", 2), _failed("b", "Y", 2), _failed("c", "Z", 2)]
            ),
            WARN,
            "6 failures in 1h, most frequent X in a",
        ),
    ],
)
def test_problem_becomes_one_alert(inputs: AlertInputs, severity: Severity, text: str) -> None:
    # A queue in which nothing finishes has a backlog too.
    alert = find_alerts(inputs)[-1]
    assert (alert.severity, alert.text) == (severity, text)
    assert len(find_alerts(inputs)) == 1 + (alert.key == "stalled")


def test_lost_workers_without_tasks_share_one_alert() -> None:
    gone = [
        make_worker(worker_id=UUID(int=number), state="lost", heartbeat_age=timedelta(minutes=number))
        for number in (3, 2, 4)
    ]
    holding = make_worker(worker_id=UUID(int=9), state="lost", heartbeat_age=timedelta(minutes=1), tasks_running=1)
    alerts = find_alerts(AlertInputs(workers=[*gone, holding]))
    assert [alert.text for alert in alerts][1:] == ["3 workers lost in 1h, last seen 2m00s ago, hold no tasks"]
    assert (alerts[0].verb, alerts[1].target) == ("requeue", UUID(int=2))


def test_ages_grow_between_two_reads() -> None:
    inputs = AlertInputs(
        queues=[make_queue(pending=3, oldest_due_age=LATE, served_by=0)],
        workers=[make_worker(**LOST)],
        stale=make_sweep_report(make_swept_task()),
        read_at={"queues": NOON, "workers": NOON, "stale": NOON + 5 * SECOND},
    )
    stale, queue, worker = (alert.text for alert in find_alerts(inputs.at(NOON + 7 * SECOND)))
    assert "oldest 3m19s" in queue
    assert "seen 6m17s ago" in worker
    assert "11m22s" in stale


@pytest.mark.parametrize(
    "inputs",
    [
        AlertInputs(),
        AlertInputs(stale=make_sweep_report()),
        AlertInputs(queues=[make_queue(pending=10, oldest_due_age=timedelta(seconds=59))]),
        AlertInputs(queues=[make_queue(served_by=0)]),
        AlertInputs(queues=[make_queue(delayed=1, next_due_in=51 * MINUTES, served_by=0)]),
        AlertInputs(queues=[make_queue(paused_at=NOON)]),
        AlertInputs(queues=[make_queue(pending=10, oldest_due_age=timedelta(seconds=59))], idle=9 * MINUTES),
        AlertInputs(queues=[make_queue(delayed=1)], idle=9 * MINUTES),
        AlertInputs(runs=[_run("RUNNING"), _run("COMPLETED")]),
        AlertInputs(workers=[make_worker(tasks_running=4, cpu_percent=100.0)]),
        AlertInputs(workers=[make_worker(processes=4, children_busy=4, tasks_running=4)]),
        AlertInputs(workers=[make_worker(state="lost", heartbeat_age=timedelta(hours=2))]),
        AlertInputs(
            failed=Count(number=9), errors=[_failed("a", "GOOD_UNTIL", 9, status="EXPIRED"), _failed("b", "X", 0)]
        ),
    ],
)
def test_healthy_or_old_conditions_raise_no_alert(inputs: AlertInputs) -> None:
    assert find_alerts(inputs) == ()


def test_errors_come_before_warnings() -> None:
    alerts = find_alerts(
        AlertInputs(
            stale=make_sweep_report(CLAIMED, make_swept_task()),
            queues=[make_queue("slow", pending=1, oldest_due_age=LATE), make_queue("dead", pending=1, served_by=0)],
            workers=[make_worker(**LOST, tasks_running=1)],
            failed=Count(number=1),
            errors=[_failed("a", "X", 1)],
        )
    )
    assert [alert.severity for alert in alerts] == [BAD, BAD, BAD, WARN, WARN, WARN]
    keys = ["stale RUNNING", "queue dead", f"dead {WORKER}", "stale CLAIMED", "queue slow", "failures"]
    assert [alert.key for alert in alerts] == keys


def test_queue_with_longer_wait_comes_first() -> None:
    slow, slower = (make_queue(name, pending=1, oldest_due_age=age) for name, age in (("a", LATE), ("b", 2 * LATE)))
    assert [alert.key for alert in find_alerts(AlertInputs(queues=[slow, slower]))] == ["queue b", "queue a"]


@pytest.mark.parametrize(
    ("inputs", "target"),
    [
        (
            AlertInputs(stale=make_sweep_report(make_swept_task())),
            TaskFilter(statuses=(TaskStatus.RUNNING,), min_silence=5 * MINUTES),
        ),
        (
            AlertInputs(queues=[make_queue(pending=1, served_by=0)]),
            UnservedQueue("mail"),
        ),
        (
            AlertInputs(queues=[make_queue(pending=1, paused_at=NOON)]),
            TaskFilter(queues=("mail",), statuses=(TaskStatus.PENDING,)),
        ),
        (AlertInputs(runs=[_run("FAILED", 1), _run("FAILED", 2)]), RunTarget(UUID(int=1))),
        (AlertInputs(workers=[make_worker(**LOST)]), WORKER),
        (
            AlertInputs(failed=Count(number=9), errors=[_failed("mail.send", "TIMEOUT", 3), _failed("b", "X", 1)]),
            TaskFilter(statuses=(TaskStatus.FAILED,), names=("mail.send",), error_codes=("TIMEOUT",)),
        ),
        (
            AlertInputs(
                failed=Count(number=9), errors=[_failed("a", "X", 1), _failed("b", "Y", 1), _failed("c", "Z", 1)]
            ),
            TaskFilter(statuses=(TaskStatus.FAILED,)),
        ),
    ],
)
def test_alert_targets_the_affected_rows(inputs: AlertInputs, target: AlertTarget) -> None:
    (alert,) = find_alerts(inputs)
    assert isinstance(alert, Alert)
    assert alert.target == target


@pytest.mark.parametrize(
    ("inputs", "verb", "label"),
    [
        (AlertInputs(stale=make_sweep_report(make_swept_task())), "sweep", "sweep"),
        (AlertInputs(queues=[make_queue(pending=1, served_by=0)]), "", "how to"),
        (AlertInputs(queues=[make_queue(pending=1, paused_at=NOON)]), "pause", "resume"),
        (AlertInputs(queues=[make_queue(pending=1, oldest_due_age=LATE)]), "", "tasks"),
        (AlertInputs(workers=[make_worker(**LOST, tasks_running=1)]), "requeue", "recover"),
        (AlertInputs(workers=[make_worker(**LOST)]), "", "open"),
        (AlertInputs(runs=[_run("FAILED")]), "requeue", "retry"),
        (AlertInputs(runs=[_run("PAUSED")]), "pause", "resume"),
        (AlertInputs(runs=[_run("PAUSED", 1), _run("PAUSED", 2)]), "", "open"),
        (AlertInputs(failed=Count(number=9), errors=[_failed("a", "X", 1)]), "", "tasks"),
    ],
)
def test_every_alert_names_what_fixes_it(inputs: AlertInputs, verb: str, label: str) -> None:
    (alert,) = find_alerts(inputs)
    assert (alert.verb, alert.label) == (verb, label)
