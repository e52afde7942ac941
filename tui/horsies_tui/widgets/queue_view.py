"""The lines below the list that say more about the queue under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.content import Content
from textual.widgets import Static

from horsies_tui.fleet import placed
from horsies_tui.format import age, clean, safe, short_age, short_id
from horsies_tui.glyphs import sampled, spark
from horsies_tui.health import TARGET_WAIT, drain_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from horsies_ops.reads.counts import Facet
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.workers import WorkerRow
    from horsies_tui.fleet_details import QueueDetail
    from horsies_tui.glyphs import Glyphs

NAMED: Final = 5
CHART: Final = 20


class QueueView(Static):
    """How long was waited, for what, who serves it and what goes wrong."""

    def show(self, queue: QueueRow | None, detail: QueueDetail | None, *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = safe("" if queue is None else f" {queue.name} ", cells=60)
        if queue is None or detail is None or detail.name != queue.name:
            self.update("")
            return
        lines = [
            _wait(queue, detail, now, glyphs),
            f"tasks      {_counted(detail.waiting) or 'none waiting'}",
            f"served by  {_served_by(detail.servers)}",
            f"failing    {_counted(detail.failing) or 'nothing in the last hour'}",
            _pause(queue, now),
        ]
        self.update(Content("\n").join([safe(line) for line in lines if line]))


def _wait(queue: QueueRow, detail: QueueDetail, now: datetime, glyphs: Glyphs) -> str:
    waits = [each and each.longest_wait for each in placed(detail.buckets, now)]
    chart = spark(sampled([wait.total_seconds() if wait else 0.0 for wait in waits], CHART), glyphs)
    drained = drain_time(queue)
    drain = f"  drains in ~{short_age(drained)}" if queue.pending and drained else ""
    return f"wait       {chart}  oldest {age(queue.oldest_due_age)} (target {age(TARGET_WAIT)}){drain}"


def _counted(facets: Sequence[Facet]) -> str:
    more = f" · {len(facets) - NAMED} more" if len(facets) > NAMED else ""
    return " · ".join(f"{clean(facet.value, limit=40)} {facet.count:,}" for facet in facets[:NAMED]) + more


def _served_by(servers: Sequence[WorkerRow]) -> str:
    if not servers:
        return "nobody: what is sent here stays here"
    named = [f"{short_id(each.worker_id)} {each.hostname}:{each.pid} ({each.processes} slots)" for each in servers]
    more = f"   and {len(named) - 2} more" if len(named) > 2 else ""
    return "   ".join(named[:2]) + more


def _pause(queue: QueueRow, now: datetime) -> str:
    if queue.paused_at is None:
        return ""
    why = f": {queue.pause_reason}" if queue.pause_reason else ""
    return f"paused     {age(now - queue.paused_at)} ago by {queue.paused_by}{why}"
