"""A program for tests: the TUI over a fake system whose rows all carry a version, raised by each byte on a pipe.

Only texts within the rows change with the version, never their keys, as in a list that is refreshed in place.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from horsies.model.retention import CleanupSummary
from horsies.model.settings import TuiConfig
from horsies.recovery.report import SweepReport
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.overview import QueueRow
from horsies_ops.reads.schedules import ScheduleRow
from horsies_ops.reads.tasks import TaskPage
from horsies_ops.reads.workers import WorkerRow
from horsies_ops.reads.workflows import WorkflowDetail, WorkflowPage
from horsies_ops.source import DataSource
from horsies_tui.app import HorsiesApp
from horsies_tui.keys import ScreenId
from tests.support.fake_system.source import FakeSource
from tests.support.tui import frozen_clock, frozen_system

FIRST_VERSION = 7001


class VersionedSource(FakeSource):
    """Every list shows the version in at least one column."""

    def __init__(self) -> None:
        super().__init__(frozen_system(100), read_only=False)
        self.version = FIRST_VERSION

    async def list_tasks(self, *arguments: Any, **options: Any) -> TaskPage:
        page = await super().list_tasks(*arguments, **options)
        return replace(page, tasks=tuple(replace(task, name=f"job.{self.version}") for task in page.tasks))

    async def list_queues(self) -> tuple[QueueRow, ...]:
        rows = await super().list_queues()
        return tuple(
            replace(
                row, max_concurrency=self.version, paused_at=self.system.now(), paused_by=str(self.version), pending=3
            )
            for row in rows
        )

    async def list_active_workers(self, threshold: timedelta | None = None) -> tuple[WorkerRow, ...]:
        rows = await super().list_active_workers(threshold)
        return tuple(replace(row, hostname=f"host{self.version}") for row in rows)

    async def stale_candidates(self, *arguments: Any, **options: Any) -> SweepReport:
        report = await super().stale_candidates(*arguments, **options)
        return replace(report, tasks=tuple(replace(task, task_name=f"job.{self.version}") for task in report.tasks))

    async def list_workflows(self, *arguments: Any, **options: Any) -> WorkflowPage:
        page = await super().list_workflows(*arguments, **options)
        return replace(page, workflows=tuple(replace(run, name=f"flow{self.version}") for run in page.workflows))

    async def workflow(self, workflow_id: Any) -> WorkflowDetail | None:
        detail = await super().workflow(workflow_id)
        return detail and replace(
            detail,
            nodes=tuple(replace(node, name=f"job.{self.version}", node_id=str(node.index)) for node in detail.nodes),
        )

    async def list_schedules(self) -> tuple[ScheduleRow, ...]:
        rows = enumerate(await super().list_schedules())
        return tuple(replace(row, name=f"sched{index}.{self.version}") for index, row in rows)

    async def events(self, *, limit: int = 100) -> tuple[EventRow, ...]:
        evidence = json.dumps({"version": self.version})
        return tuple(replace(row, evidence_json=evidence) for row in await super().events(limit=limit))

    async def audit(self, **options: Any) -> tuple[AuditRow, ...]:
        return tuple(replace(row, reason=str(self.version)) for row in await super().audit(**options))

    async def cleanup_candidates(self) -> CleanupSummary:
        summary = await super().cleanup_candidates()
        return replace(summary, categories=tuple(replace(row, rows=self.version) for row in summary.categories))


def main(pipe: int) -> None:
    source = VersionedSource()

    @asynccontextmanager
    async def opener(*, read_only: bool) -> AsyncGenerator[DataSource]:
        asyncio.get_running_loop().add_reader(pipe, raise_version)
        yield source

    app = HorsiesApp(opener, TuiConfig(), database_name="db1/app", clock=frozen_clock(), start=ScreenId.DASHBOARD)

    def raise_version() -> None:
        source.version += len(os.read(pipe, 100))
        app.context.queries.refresh()

    app.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
