"""Looking up tasks that ran where they were sent, for code that keeps ids."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from horsies.client.outcome import not_yet, result_of
from horsies.client.results import answered, seconds
from horsies.errors import BrokerErrorCode
from horsies.model.ids import parse_id
from horsies.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from horsies.codec.result import AnyResult
    from horsies.model.broker import BrokerResult
    from horsies.model.info import TaskInfo
    from horsies.testing.inline_run import InlineRun


class InlineReads:
    """Answers as the database would if `runs`, by the id of their task, were its rows."""

    def __init__(self, runs: Mapping[str, InlineRun]) -> None:
        self._runs = runs

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult:
        """The result of a task that has ended. One that runs has its time-out at once: most likely it asks itself."""
        seconds(timeout_ms)
        try:
            run = self._find(task_id)
        except ValueError:
            run = None
        if run is None:
            return result_of(str(task_id), None, None)
        return run.result if run.has_ended else not_yet(str(task_id), TaskStatus.RUNNING)

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]:
        return await answered(BrokerErrorCode.TASK_INFO_QUERY_FAILED, self._document(task_id))

    async def info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> BrokerResult[TaskInfo | None]:
        asked = self._info(
            task_id,
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )
        return await answered(BrokerErrorCode.TASK_INFO_QUERY_FAILED, asked)

    async def _document(self, task_id: str | UUID) -> dict[str, object] | None:
        run = self._find(task_id)
        return json.loads(run.document) if run and run.has_ended else None

    async def _info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> TaskInfo | None:
        run = self._find(task_id)
        if run is None:
            return None
        info = run.info()
        return replace(
            info,
            result=info.result if include_result else None,
            failed_reason=info.failed_reason if include_failed_reason else None,
            attempts=info.attempts if include_attempts else None,
        )

    def _find(self, task_id: str | UUID) -> InlineRun | None:
        """`ValueError` for what is no id."""
        return self._runs.get(parse_id(str(task_id)))
