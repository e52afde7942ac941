"""The sweep, as a change to look at first: what it would do is decided by the rule that it then goes by."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from horsies.model.recovery.verdicts import Decision
from horsies.recovery.report import SweepStatus
from horsies_ops.actions.report import Progress
from horsies_tui.fleet import workers_of
from horsies_tui.format import age, clock, plural, short_id
from horsies_tui.proposals import Line, Outcome, Proposal
from horsies_tui.stale import Candidate

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    from horsies.model.recovery.options import SweepOptions
    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.reads.verdicts import Silent
    from horsies_tui.source import Source

FEW = 25
"""For no more than this many a key is enough."""

_EFFECTS = {
    Decision.REQUEUE: "go back to their queue: they had not begun",
    Decision.RETRY: "are run again, as their retry policy has it",
    Decision.FAIL: "fail",
    Decision.EXPIRE: "expire: it is too late for them",
    Decision.HOLD: "left alone: a hook holds them",
    Decision.LEAVE: "left alone",
}
_DONE = {Decision.REQUEUE: "requeued", Decision.RETRY: "retried", Decision.FAIL: "failed", Decision.EXPIRE: "expired"}


async def for_sweep(source: Source, options: SweepOptions) -> Proposal:
    """What a sweep with these options would do now; it decides anew when it is carried out.

    One that would do nothing says what is silent, and from when that will be stale.
    """
    seen = await source.stale_candidates(options)
    due = [task for task in seen.tasks if task.is_due]
    healed = len(seen.workflows)
    alive = await _with_live_owners(source, due) if due else 0
    silent = None if due or healed else await source.not_yet_stale(options)

    async def apply(reason: str | None, progress: Callable[[Progress], None], stop: asyncio.Event) -> Outcome:
        report = await source.sweep(options, reason=reason, stop=stop)
        moved = sum(task.applied for task in report.tasks)
        progress(Progress(done=1, total=1, affected=moved, skipped=0))
        return _outcome(report)

    return Proposal(
        title=f"Sweep {plural(len(due), 'task')}",
        verb=f"sweep {len(due) + healed:,}",
        selected_by=_selected_by(options),
        lines=_lines(seen),
        warnings=(*_warnings(due, alive), *seen.warnings, *_soon(silent)),
        command=command(options),
        to_type=str(len(due) + healed) if len(due) > FEW or alive else None,
        apply=apply,
    )


def _selected_by(options: SweepOptions) -> str:
    return "all that is stale" if options.worker_id is None else f"what worker {short_id(options.worker_id)} holds"


def _lines(report: SweepReport) -> tuple[Line, ...]:
    groups = Counter((task.decision, task.state, task.code or task.reason) for task in report.tasks)
    tasks = tuple(
        Line(count=count, kind=f"{state}  {why}", effect=_EFFECTS[decision], is_skipped=decision not in _DONE)
        for (decision, state, why), count in groups.most_common()
    )
    cases = Counter(workflow.case for workflow in report.workflows)
    healed = tuple(
        Line(count=count, kind=f"WORKFLOW  {case}", effect="are put right and go on") for case, count in cases.items()
    )
    return (*tasks, *healed) or (Line(count=0, kind="stale", effect="nothing to do", is_skipped=True),)


async def _with_live_owners(source: Source, due: Sequence[SweptTask]) -> int:
    """How many of these may well be running, by the rule of the list of stale tasks."""
    workers = {worker.worker_id: worker for worker in await workers_of(source)}
    owned = [(task, None if task.owner_id is None else workers.get(task.owner_id)) for task in due]
    return sum(Candidate(task=task, quiet_since=None, owner=owner).is_alive for task, owner in owned)


def _warnings(due: Sequence[SweptTask], alive: int) -> Iterator[str]:
    if begun := sum(task.decision is Decision.RETRY for task in due):
        yield f"side effects may happen again: {begun:,} of these did start"
    if alive:
        yield f"{alive:,} of these are silent though their worker still reports"


def _soon(silent: Silent | None) -> Iterator[str]:
    if silent is not None:
        yield f"{plural(silent.count, 'task')} silent for {age(silent.longest)}, stale from {clock(silent.stale_at)}"


def command(options: SweepOptions) -> str:
    """The command line that does the same."""
    parts = ["horsies", "sweep"]
    if options.sweep_threshold is not None:
        parts += ["--threshold", f"{options.sweep_threshold.total_seconds():g}s"]
    if options.worker_id is not None:
        parts += ["--worker", str(options.worker_id)]
    return " ".join([*parts, "--force"] if options.force else parts)


def _outcome(report: SweepReport) -> Outcome:
    match report.status:
        case SweepStatus.BUSY:
            return Outcome(title="Nothing changed", lines=("somebody else is sweeping; try again in a minute",))
        case SweepStatus.AMNESTY:
            return Outcome(title="Nothing changed", lines=("nobody has listened for long enough; all are held back",))
        case _:
            moved = [task for task in report.tasks if task.applied]
            counts = Counter(task.decision for task in moved)
            parts = [f"{word} {counts[decision]:,}" for decision, word in _DONE.items() if counts[decision]]
            parts += [f"healed {plural(len(report.workflows), 'workflow')}"] if report.workflows else []
            missed = sum(task.is_due and not task.applied for task in report.tasks)
            parts += [f"{missed:,} had moved meanwhile"] if missed else []
            parts += [f"{plural(len(report.held), 'workflow')} held by others"] if report.held else []
            nothing = "nothing was changed" if report.was_stopped else "nothing was stale any more"
            stopped = ("stopped before the end; the rest is as it was",) if report.was_stopped else ()
            failed = tuple(f"{each.step}: {each.error.message}" for each in report.failures)
            return Outcome(
                title="Swept",
                lines=("   ".join(parts) or nothing, *stopped, *failed, *report.warnings),
                changed=tuple(task.task_id for task in moved),
            )
