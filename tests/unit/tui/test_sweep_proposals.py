from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast
from uuid import uuid4

import pytest

from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies.recovery.report import SweepReport, SweepStatus, SweptTask
from horsies_ops.reads.workers import WorkerRow
from horsies_ops.source import DataSource
from horsies_tui.proposals.model import Confirmation, Proposal, ProposalReport
from horsies_tui.proposals.sweep import propose_sweep
from tests.support.rows import WORKER, make_sweep_report, make_swept_task, make_worker

ONE_WORKER = SweepOptions(worker_id=WORKER)
LIVE_WORKER = make_worker()
SILENT = tuple(make_swept_task(due_in=timedelta(seconds=seconds)) for seconds in (42, 50))
BLOCKED = make_swept_task(owner_state="running", reason="HEARTBEAT_LOST")


@dataclass(frozen=True)
class SweepSource:
    """A source with fixed reports of the dry run and the sweep."""

    found: SweepReport
    done: SweepReport | None = None
    owner: WorkerRow = LIVE_WORKER

    settings = AppConfig()

    async def stale_candidates(self, options: SweepOptions) -> SweepReport:
        del options
        return self.found

    async def list_active_workers(self, threshold: timedelta | None = None) -> tuple[WorkerRow, ...]:
        del threshold
        return (self.owner,)

    async def silent_tasks(self, options: SweepOptions) -> tuple[SweptTask, ...]:
        del options
        return SILENT

    async def sweep(self, options: SweepOptions, *, reason: str | None, stop: asyncio.Event) -> SweepReport:
        del options, reason, stop
        return self.done or self.found


async def _proposal(found: SweepReport, done: SweepReport | None = None) -> Proposal:
    return await propose_sweep(cast("DataSource", SweepSource(found, done)), ONE_WORKER)


async def _applied_report(found: SweepReport, done: SweepReport) -> ProposalReport:
    confirmed = Confirmation(reason=None, progress=lambda _: None, stop=asyncio.Event())
    return await (await _proposal(found, done)).apply(confirmed)


async def test_small_sweep_needs_only_key_and_warns_of_started_tasks() -> None:
    proposal = await _proposal(
        make_sweep_report(make_swept_task(), make_swept_task(TaskStatus.CLAIMED, decision=DecisionKind.REQUEUE))
    )
    assert (proposal.confirmation_text, proposal.apply_label) == (None, "sweep 2")
    assert proposal.warnings == ("side effects may happen again: 1 of these did start",)
    assert proposal.command == f"horsies sweep --worker {WORKER}"


@pytest.mark.parametrize(
    ("found", "confirmation"),
    [(make_sweep_report(*[make_swept_task()] * 26), "26"), (make_sweep_report(BLOCKED), "1")],
    ids=["many", "live owner"],
)
async def test_many_tasks_or_live_owner_require_typed_number(found: SweepReport, confirmation: str) -> None:
    assert (await _proposal(found)).confirmation_text == confirmation


async def test_silent_worker_is_not_called_live() -> None:
    silent = SweepSource(make_sweep_report(BLOCKED), owner=make_worker(heartbeat_age=timedelta(minutes=6)))
    proposal = await propose_sweep(cast("DataSource", silent), ONE_WORKER)
    assert proposal.confirmation_text is None
    assert not any("still sends heartbeats" in warning for warning in proposal.warnings)


async def test_empty_sweep_counts_silent_tasks_and_says_what_comes() -> None:
    assert (await _proposal(make_sweep_report())).warnings == (
        "2 silent tasks, the first stale in 42s: retry, attempt 2 of 3",
    )


async def test_silent_tasks_are_not_counted_if_some_are_stale() -> None:
    assert not any(
        "silent task" in warning for warning in (await _proposal(make_sweep_report(make_swept_task()))).warnings
    )


async def test_held_tasks_are_shown_but_not_counted() -> None:
    proposal = await _proposal(make_sweep_report(make_swept_task(decision=DecisionKind.HOLD, reason="hook_skip")))
    assert proposal.is_empty
    assert [(line.count, line.kind) for line in proposal.lines] == [(1, "RUNNING  hook_skip")]


@pytest.mark.parametrize(
    ("done", "line"),
    [
        (
            make_sweep_report(make_swept_task(applied=True), make_swept_task(), status=SweepStatus.DONE),
            "retried 1   1 changed meanwhile",
        ),
        (make_sweep_report(status=SweepStatus.NOTHING), "nothing was stale anymore"),
        (replace(make_sweep_report(status=SweepStatus.NOTHING), locked_runs=(uuid4(),)), "1 workflow run locked"),
        (make_sweep_report(status=SweepStatus.BUSY), "another sweep is running; try again in a minute"),
    ],
)
async def test_report_shows_applied_changes_not_preview(done: SweepReport, line: str) -> None:
    report = await _applied_report(
        make_sweep_report(make_swept_task(), make_swept_task()), replace(done, dry_run=False)
    )
    assert report.lines == (line,)


async def test_stopped_sweep_is_reported() -> None:
    done = replace(
        make_sweep_report(make_swept_task(applied=True), status=SweepStatus.DONE), dry_run=False, was_stopped=True
    )
    report = await _applied_report(make_sweep_report(make_swept_task(), make_swept_task()), done)
    assert report.lines[:2] == ("retried 1", "stopped before the end; the rest is unchanged")
