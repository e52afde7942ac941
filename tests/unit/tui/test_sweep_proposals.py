from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import pytest

from horsies.model.recovery.options import SweepOptions
from horsies.model.recovery.verdicts import Decision
from horsies.model.task import TaskStatus
from horsies.recovery.report import SweepStatus
from horsies_tui.sweep_proposals import for_sweep
from tests.support.fleet_values import WORKER, a_sweep, swept

if TYPE_CHECKING:
    from horsies.recovery.report import SweepReport
    from horsies_tui.proposals import Outcome, Proposal
    from horsies_tui.source import Source

ONE = SweepOptions(worker_id=WORKER)


@dataclass(frozen=True)
class Swept:
    """A source that finds this in a dry run, and then does that."""

    found: SweepReport
    done: SweepReport | None = None

    async def stale_candidates(self, options: SweepOptions) -> SweepReport:
        del options
        return self.found

    async def sweep(self, options: SweepOptions, *, reason: str | None, stop: asyncio.Event) -> SweepReport:
        del options, reason, stop
        return self.done or self.found


async def _proposal(found: SweepReport, done: SweepReport | None = None) -> Proposal:
    return await for_sweep(cast("Source", Swept(found, done)), ONE)


async def _outcome(found: SweepReport, done: SweepReport) -> Outcome:
    return await (await _proposal(found, done)).apply(None, lambda _: None, asyncio.Event())


async def test_a_sweep_of_few_tasks_of_the_dead_needs_a_key_and_warns_of_what_had_begun() -> None:
    proposal = await _proposal(a_sweep(swept(), swept(TaskStatus.CLAIMED, decision=Decision.REQUEUE)))
    assert (proposal.to_type, proposal.verb) == (None, "sweep 2")
    assert proposal.warnings == ("side effects may happen again: 1 of these did start",)
    assert proposal.command == f"horsies sweep --worker {WORKER}"


@pytest.mark.parametrize(
    ("found", "typed"),
    [(a_sweep(*[swept()] * 26), "26"), (a_sweep(swept(owner_state="running")), "1")],
    ids=["many", "its worker lives"],
)
async def test_many_tasks_or_one_whose_worker_lives_need_their_number_typed(found: SweepReport, typed: str) -> None:
    assert (await _proposal(found)).to_type == typed


async def test_what_is_held_back_is_shown_and_not_counted() -> None:
    proposal = await _proposal(a_sweep(swept(decision=Decision.HOLD, reason="hook_skip")))
    assert proposal.is_empty
    assert [(line.count, line.kind) for line in proposal.lines] == [(1, "RUNNING  hook_skip")]


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (a_sweep(swept(applied=True), swept(), status=SweepStatus.DONE), "retried 1   1 had moved meanwhile"),
        (a_sweep(status=SweepStatus.NOTHING), "nothing was stale any more"),
        (replace(a_sweep(status=SweepStatus.NOTHING), held=(uuid4(),)), "1 workflow held by others"),
        (a_sweep(status=SweepStatus.BUSY), "somebody else is sweeping; try again in a minute"),
    ],
)
async def test_the_result_says_what_was_done_and_not_what_was_planned(done: SweepReport, told: str) -> None:
    outcome = await _outcome(a_sweep(swept(), swept()), replace(done, dry_run=False))
    assert outcome.lines == (told,)


async def test_a_sweep_that_was_stopped_says_so() -> None:
    done = replace(a_sweep(swept(applied=True), status=SweepStatus.DONE), dry_run=False, was_stopped=True)
    outcome = await _outcome(a_sweep(swept(), swept()), done)
    assert outcome.lines[:2] == ("retried 1", "stopped before the end; the rest is as it was")
