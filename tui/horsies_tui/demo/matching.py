"""A filter, applied to invented tasks: what the statements of the real reads do, in a few lines of Python."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies_ops.reads.filter import TaskFilter
    from horsies_ops.reads.tasks import TaskFacts


def matches(task: TaskFacts, wanted: TaskFilter, now: datetime) -> bool:
    """Whether every part holds and nothing that is excluded does."""
    return all(_parts(task, wanted, now)) and not any(matches(task, each, now) for each in wanted.excluded)


def _parts(task: TaskFacts, wanted: TaskFilter, now: datetime) -> Iterator[bool]:
    yield not wanted.statuses or task.status in wanted.statuses
    yield not wanted.queues or task.queue in wanted.queues
    yield not wanted.names or _fits(task.name, wanted.names)
    yield not wanted.error_codes or _fits(task.error_code or "", wanted.error_codes)
    yield not wanted.ids or any(_is(task.id, each) for each in wanted.ids)
    yield wanted.worker_id is None or _is(task.worker_id, wanted.worker_id)
    yield wanted.workflow_id is None or _is(task.workflow_id, wanted.workflow_id)
    yield wanted.text is None or wanted.text.lower() in f"{task.name} {task.kwargs_json} {task.error_code}".lower()
    yield wanted.min_attempts is None or task.attempt_count >= wanted.min_attempts
    yield wanted.due_later is None or wanted.due_later == (task.status == TaskStatus.PENDING and task.enqueued_at > now)
    yield from _times(task, wanted, now)


def _times(task: TaskFacts, wanted: TaskFilter, now: datetime) -> Iterator[bool]:
    yield wanted.older_than is None or now - task.sent_at > wanted.older_than
    yield wanted.newer_than is None or now - task.sent_at < wanted.newer_than
    yield _at_least((task.claimed_at or now) - task.enqueued_at, wanted.min_wait)
    yield _at_least(None if task.started_at is None else (task.finished_at or now) - task.started_at, wanted.min_run)
    yield _at_least(None if task.last_beat_at is None else now - task.last_beat_at, wanted.min_silence)


def _at_least(span: timedelta | None, least: timedelta | None) -> bool:
    return least is None or (span is not None and span >= least)


def _fits(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


def _is(identity: UUID | None, named: str) -> bool:
    return identity is not None and str(identity).endswith(named.lower())
