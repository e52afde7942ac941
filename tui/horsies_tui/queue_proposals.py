"""Pausing and resuming a queue, as a change to look at first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from horsies_tui.format import age
from horsies_tui.proposals import Line, Outcome, Proposal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from datetime import datetime

    from horsies_ops.actions.report import ActionReport, Progress
    from horsies_ops.reads.queues import QueueRow
    from horsies_tui.source import Source


async def for_queue(source: Source, name: str, now: datetime) -> Proposal:
    """What `P` would do to this queue as it stands: resume it where it is paused, else pause it."""
    queue = next((each for each in await source.list_queues() if each.name == name), None)
    is_paused = queue is not None and queue.is_paused
    verb = "resume" if is_paused else "pause"
    change = source.resume_queue if is_paused else source.pause_queue

    async def apply(reason: str | None, _: Callable[[Progress], None], __: asyncio.Event) -> Outcome:
        return _outcome(name, verb, await change(name, reason=reason))

    return Proposal(
        title=f"{verb.capitalize()} queue {name}",
        verb=f"{verb} {name}",
        selected_by=f"queue {name}",
        lines=() if queue is None else _resumed(queue, now) if is_paused else _paused(queue),
        warnings=_warnings(queue, name),
        command=shlex.join(["horsies", "queue", verb, name]),
        apply=apply,
    )


def _paused(queue: QueueRow) -> tuple[Line, ...]:
    return (
        Line(count=queue.pending + queue.delayed, kind="PENDING", effect="stay where they are until it is resumed"),
        Line(count=queue.claimed, kind="CLAIMED", effect="go on", is_skipped=True),
        Line(count=queue.running, kind="RUNNING", effect="go on", is_skipped=True),
    )


def _resumed(queue: QueueRow, now: datetime) -> tuple[Line, ...]:
    since = "" if queue.paused_at is None else f"   paused {age(now - queue.paused_at)} ago by {queue.paused_by}"
    why = f": {queue.pause_reason}" if queue.pause_reason else ""
    return (Line(count=queue.pending, kind=f"PENDING{since}{why}", effect="may be claimed again, at once"),)


def _warnings(queue: QueueRow | None, name: str) -> tuple[str, ...]:
    if queue is None:
        return (f"there is no queue {name} any more",)
    return () if queue.served_by else ("no live worker takes from it",)


def _outcome(name: str, verb: str, report: ActionReport) -> Outcome:
    done = f"{name} is {verb}d" if report.affected else f"{name} had been {verb}d already"
    return Outcome(
        title=f"{verb.capitalize()}d" if report.affected else "Nothing changed",
        lines=(done, f"operator log {report.audit_id}", *report.warnings),
    )
