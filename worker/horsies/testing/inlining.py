"""Sends that run the task at once, for tests without a server."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.client.delivery import AnyHandle, AnySend, refusal_of
from horsies.client.handle import TaskHandle
from horsies.codec.ids import IDS
from horsies.model.result import Err, Ok
from horsies.model.sending import ExistingTask, SendOutcome, TaskSendPayload, TaskSendResult, judge, payload_of
from horsies.testing.execution import execute, execute_async, rules_of
from horsies.testing.inline_reads import InlineReads
from horsies.testing.inline_run import InlineRun

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from horsies.app import Horsies
    from horsies.model.info import TaskInfo
    from horsies.model.mapping import ExceptionRules
    from horsies.registry import TaskDefinition


@contextmanager
def inline(app: Horsies) -> Generator[list[TaskInfo]]:
    """Inside the block every send of `app` runs its task at once, with its retries, and returns a finished handle.

    Yields the list of tasks that have ended, in that order. Arguments and results take the way through their stored
    form; no delay is waited for and no time limit enforced. A blocking send runs its task in the calling thread.
    What `app` is asked of tasks by their ids is answered from here too, and not from its database.
    """
    delivery = InlineDelivery(rules_of(app.config))
    before = app.delivery, app.reads
    app.delivery, app.reads = delivery, delivery.reads
    try:
        yield delivery.ended
    finally:
        app.delivery, app.reads = before


class InlineDelivery:
    """Runs payloads instead of storing them; ids and idempotency keys are remembered as rows would be."""

    def __init__(self, rules: ExceptionRules) -> None:
        self.ended: list[TaskInfo] = []
        self._rules = rules
        self._worker_id = IDS.text()
        self._by_id: dict[str, TaskSendPayload] = {}
        self._by_key: dict[tuple[str, str], TaskSendPayload] = {}
        self._runs: dict[str, InlineRun] = {}
        self.reads = InlineReads(self._runs)

    def one(self, task: TaskDefinition, send: AnySend) -> TaskSendResult[AnyHandle]:
        payload = payload_of(send)
        if (standing := self._standing(payload)) is not None:
            return standing
        run = self._begin(task, payload)
        while (attempt := run.next_attempt()) is not None:
            run.record(execute(run.work, attempt))
        return Ok(self._end(run))

    async def one_async(
        self,
        task: TaskDefinition,
        send: AnySend,
        connection: object | None,  # noqa: ARG002  # there is no transaction to be part of
    ) -> TaskSendResult[AnyHandle]:
        payload = payload_of(send)
        if (standing := self._standing(payload)) is not None:
            return standing
        run = self._begin(task, payload)
        while (attempt := run.next_attempt()) is not None:
            run.record(await execute_async(run.work, attempt))
        return Ok(self._end(run))

    def many(self, task: TaskDefinition, payloads: Sequence[TaskSendPayload]) -> TaskSendResult[list[AnyHandle]]:
        return Ok([self.one(task, payload).unwrap() for payload in payloads])

    async def many_async(
        self, task: TaskDefinition, payloads: Sequence[TaskSendPayload], connection: object | None
    ) -> TaskSendResult[list[AnyHandle]]:
        return Ok([(await self.one_async(task, payload, connection)).unwrap() for payload in payloads])

    def _standing(self, payload: TaskSendPayload) -> TaskSendResult[AnyHandle] | None:
        """What an earlier send with the same id or key makes of this one; None where there is none."""
        # No key is empty, so that a send without one finds none.
        key = (payload.task_name, payload.idempotency_key or "")
        same_id, same_key = self._by_id.get(payload.task_id), self._by_key.get(key)
        rows = (_row(sent, has_same_key=sent is same_key) for sent in (same_id, same_key) if sent is not None)
        outcome, task_id = judge(payload, rows)
        if outcome is SendOutcome.GONE:
            return None
        refused = refusal_of(outcome, payload, task_id)
        return Ok(self._handle(self._runs[task_id])) if refused is None else Err(refused)

    def _begin(self, task: TaskDefinition, payload: TaskSendPayload) -> InlineRun:
        self._by_id[payload.task_id] = payload
        if payload.idempotency_key is not None:
            self._by_key[payload.task_name, payload.idempotency_key] = payload
        run = self._runs[payload.task_id] = InlineRun(task, payload, self._rules, worker_id=self._worker_id)
        return run

    def _end(self, run: InlineRun) -> AnyHandle:
        self.ended.append(run.info())
        return self._handle(run)

    def _handle(self, run: InlineRun) -> AnyHandle:
        # A task may send its own key again while it runs, and gets itself: a handle without a result yet.
        return TaskHandle(run.task_id, self.reads, known=run.result if run.has_ended else None)


def _row(sent: TaskSendPayload, *, has_same_key: bool) -> ExistingTask:
    return ExistingTask(
        id=UUID(sent.task_id),
        enqueue_sha=sent.enqueue_sha,
        command_sha=sent.command_sha,
        has_same_key=has_same_key,
    )
