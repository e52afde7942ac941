"""Text output of `horsies sweep`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone
from uuid import uuid4

import pytest

from horsies.model.recovery.decision import DecisionKind
from horsies.recovery.report import SweepReport, SweepStatus
from horsies_ops.cli.commands.recovery import MAX_SILENT_LINES, print_sweep
from tests.support.rows import NOON, make_sweep_report, make_swept_task

EASTERN = timezone(timedelta(hours=5, minutes=30))


def _printed(report: SweepReport, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_sweep(report)
    return capsys.readouterr().out.splitlines()


def test_times_are_in_utc_with_date(capsys: pytest.CaptureFixture[str]) -> None:
    later = (NOON + timedelta(days=3)).astimezone(EASTERN)
    held = make_swept_task(decision=DecisionKind.HOLD, reason="hook_skip", held_until=later)
    lines = _printed(make_sweep_report(make_swept_task(run_at=later), held), capsys)
    assert lines[1].endswith("at 2026-11-17 12:04:31Z")
    assert lines[2].endswith("until 2026-11-17 12:04:31Z")


def test_refused_and_changed_tasks_are_counted_separately(capsys: pytest.CaptureFixture[str]) -> None:
    refused = make_swept_task(refusal="integer out of range")
    done = make_sweep_report(
        make_swept_task(applied=True), make_swept_task(), refused, status=SweepStatus.DONE, dry_run=False
    )
    assert _printed(done, capsys)[-1] == "1 retried, 1 changed meanwhile, 1 refused by the database"
    nothing = make_sweep_report(refused, status=SweepStatus.NOTHING, dry_run=False)
    lines = _printed(nothing, capsys)
    assert lines[1].endswith("refused: integer out of range")
    assert lines[-1] == "1 refused by the database"


def test_locked_workflows_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = replace(make_sweep_report(status=SweepStatus.NOTHING, dry_run=False), locked_runs=(uuid4(),))
    assert _printed(report, capsys) == ["1 workflows locked by another transaction"]


def test_outage_grace_shows_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    held_back = [
        make_swept_task(
            decision=DecisionKind.LEAVE, reason="outage_grace", held_until=NOON + timedelta(minutes=minutes)
        )
        for minutes in (1, 3)
    ]
    last = _printed(make_sweep_report(*held_back, status=SweepStatus.OUTAGE_GRACE), capsys)[-1]
    assert last.endswith("all stale tasks (2) held back until 2026-11-14 12:07:31Z")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_terminal_shows_only_the_first_silent_tasks(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [make_swept_task(due_in=timedelta(seconds=second)) for second in range(1_000 + MAX_SILENT_LINES)]
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    print_sweep(make_sweep_report(status=SweepStatus.NOTHING), silent)
    output = capsys.readouterr().out
    assert output.count(" retry") == (MAX_SILENT_LINES if is_terminal else len(silent))
    assert ("and 1,000 more; horsies sweep --dry-run --json lists all" in output) is is_terminal
