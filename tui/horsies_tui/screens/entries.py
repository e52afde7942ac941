"""What happened, line by line: changes that were heard, events and actions of operators that were written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from horsies.model.events import EventKind
from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.format import fit, format_time, sanitize, short_id
from horsies_tui.widgets.row_list import Tone

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow, EventRow
    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.data.queries import LoggedChange


class EntryKind(StrEnum):
    """What a line is about."""

    TASK = "task"
    WORKER = "worker"
    WORKFLOW = "flow"
    EVENT = "event"
    OPERATOR = "op"
    FEED = "feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEntry:
    """One line, or `count` that are alike."""

    key: str
    at: datetime
    kind: EntryKind
    what: str
    subject: str = ""
    note: str = ""
    tone: Tone = Tone.PLAIN
    count: int = 1
    ids: tuple[UUID, ...] = ()
    name: str | None = None
    queue: str | None = None
    statuses: tuple[str, ...] = ()
    error_code: str | None = None
    worker_id: UUID | None = None
    workflow_id: UUID | None = None

    @property
    def group_name(self) -> str:
        """What it is about, whichever single thing that was."""
        return self.subject if self.kind is EntryKind.OPERATOR else self.name or self.queue or ""

    @property
    def group_key(self) -> tuple[str, ...]:
        """Shared with those that say the same; only tasks and what is done to them come in numbers."""
        return (
            (self.kind, self.group_name, self.what)
            if self.kind in (EntryKind.TASK, EntryKind.OPERATOR)
            else (self.key,)
        )


_TONES: Final[Mapping[str, Tone]] = {
    TaskStatus.FAILED: Tone.BAD,
    TaskStatus.EXPIRED: Tone.WARN,
    TaskStatus.CANCELLED: Tone.WARN,
    TaskStatus.COMPLETED: Tone.GOOD,
    FeedStatus.LOST: Tone.BAD,
    FeedStatus.RESTORED: Tone.GOOD,
    EventKind.WORKER_LOST: Tone.BAD,
    EventKind.TASK_POISONED: Tone.BAD,
    EventKind.CHILD_DIED: Tone.BAD,
    EventKind.HOOK_FAILED: Tone.BAD,
    EventKind.OPERATION_DISABLED: Tone.BAD,
    EventKind.OUTBOX_QUARANTINED: Tone.BAD,
    EventKind.TASK_RECOVERED: Tone.WARN,
    EventKind.OVERLAP_POSSIBLE: Tone.WARN,
    EventKind.LATE_RESULT_REFUSED: Tone.WARN,
    EventKind.LISTENER_DEGRADED: Tone.WARN,
    EventKind.FLEET_MISMATCH: Tone.WARN,
}
"""The others are plain."""


def entry_from_change(heard: LoggedChange, known: Mapping[UUID, TaskSummary], *, offset: timedelta) -> StreamEntry:
    """A change as a line; `known` are tasks that it may be about, `offset` how far the database's clock is ahead."""
    change = heard.change
    key, at = f"change {heard.number}", change.at + offset
    match change.topic:
        case Topic.FEED:
            return StreamEntry(
                key=key,
                at=at,
                kind=EntryKind.FEED,
                subject=change.kind,
                what=_FEED_TEXT[FeedStatus(change.kind)],
                tone=_tone(change),
                note=change.detail.splitlines()[0] if change.detail else "",
            )
        case Topic.WORKFLOW:
            run = change.ids[0] if change.ids else None
            return StreamEntry(
                key=key,
                at=at,
                kind=EntryKind.WORKFLOW,
                subject=short_id(run),
                what="came to an end or was paused",
                workflow_id=run,
            )
        case _:
            return _entry_from_task_change(key, at, change, known)


_FEED_TEXT: Final = {
    FeedStatus.LIVE: "told as it happens",
    FeedStatus.RESTORED: "back, all read again",
    FeedStatus.POLLING: "asked at intervals",
    FeedStatus.LOST: "connection lost",
}


def _entry_from_task_change(key: str, at: datetime, change: Change, known: Mapping[UUID, TaskSummary]) -> StreamEntry:
    tasks = [known[each] for each in change.ids if each in known]
    names = {task.name for task in tasks}
    name = names.pop() if len(names) == 1 else None
    code = tasks[0].error_code if change.count == 1 and tasks and change.to_status == TaskStatus.FAILED else None
    after = change.to_status or TaskStatus.PENDING
    return StreamEntry(
        key=key,
        at=at,
        kind=EntryKind.TASK,
        subject=_subject(change.count, change.ids, name or change.queue),
        what=f"{change.from_status or 'new'} → {after}",
        note=code or _worker(change, tasks),
        tone=_tone(change),
        count=change.count,
        ids=change.ids,
        name=name,
        queue=change.queue,
        statuses=tuple(filter(None, (change.from_status, after))),
        error_code=code,
        worker_id=change.worker_id,
    )


def _subject(count: int, ids: Sequence[UUID], name: str | None) -> str:
    who = short_id(ids[0]) if count == 1 and ids else f"×{count:,}"
    return f"{who} {name or ''}".rstrip()


def _worker(change: Change, tasks: Sequence[TaskSummary]) -> str:
    found = change.worker_id or (tasks[0].worker_id if len(tasks) == 1 else None)
    return f"worker {short_id(found)}" if found is not None else ""


def _tone(change: Change) -> Tone:
    return _TONES.get(change.to_status or change.kind, Tone.PLAIN)


def entry_from_event(row: EventRow, known: Mapping[UUID, TaskSummary]) -> StreamEntry:
    """An event that was written down, with its evidence."""
    evidence = " ".join(f"{name}={value}" for name, value in row.evidence.items() if value is not None)
    task = None if row.task_id is None else known.get(row.task_id)
    subject, kind = row.queue or "", EntryKind.EVENT
    if row.task_id is not None:
        subject, kind = f"{short_id(row.task_id)} {task.name if task else ''}".rstrip(), EntryKind.TASK
    elif row.workflow_id is not None:
        subject, kind = short_id(row.workflow_id), EntryKind.WORKFLOW
    elif row.worker_id is not None:
        subject, kind = short_id(row.worker_id), EntryKind.WORKER
    return StreamEntry(
        key=f"event {row.id}",
        at=row.at,
        kind=kind,
        subject=subject,
        what=row.kind,
        note=sanitize(evidence, limit=300),
        tone=_TONES.get(row.kind, Tone.PLAIN),
        ids=() if row.task_id is None else (row.task_id,),
        name=None if task is None else task.name,
        queue=row.queue,
        worker_id=row.worker_id,
        workflow_id=row.workflow_id,
    )


def entry_from_audit(row: AuditRow) -> StreamEntry:
    """What an operator did."""
    done = "dry run" if row.dry_run else f"{row.affected:,} changed, {row.skipped:,} skipped"
    return StreamEntry(
        key=f"action {row.id}",
        at=row.at,
        kind=EntryKind.OPERATOR,
        subject=f"{sanitize(row.actor, limit=40)} {row.action}",
        what=done,
        note=f'"{sanitize(row.reason, limit=200)}"' if row.reason else f"{row.matched:,} matched",
        ids=tuple(row.task_ids),
    )


def matches(entry: StreamEntry, task_filter: TaskFilter, now: datetime) -> bool:
    """Whether an entry fits a filter of tasks; a part that it knows nothing of does not fit."""
    return all(_conditions(entry, task_filter, now)) and not any(
        matches(entry, each, now) for each in task_filter.excluded
    )


def _conditions(entry: StreamEntry, task_filter: TaskFilter, now: datetime) -> Iterator[bool]:
    yield not task_filter.statuses or bool(set(task_filter.statuses) & set(entry.statuses))
    yield not task_filter.queues or entry.queue in task_filter.queues
    yield not task_filter.names or any(fnmatchcase(entry.name or "", glob) for glob in task_filter.names)
    yield not task_filter.error_codes or any(
        fnmatchcase(entry.error_code or "", glob) for glob in task_filter.error_codes
    )
    yield not task_filter.ids or any(_id_matches(each, named) for each in entry.ids for named in task_filter.ids)
    yield task_filter.worker_id is None or _id_matches(entry.worker_id, task_filter.worker_id)
    yield task_filter.workflow_id is None or _id_matches(entry.workflow_id, task_filter.workflow_id)
    yield task_filter.text is None or task_filter.text.lower() in f"{entry.subject} {entry.what} {entry.note}".lower()
    yield task_filter.newer_than is None or now - entry.at < task_filter.newer_than
    yield task_filter.older_than is None or now - entry.at > task_filter.older_than
    foreign = (
        task_filter.min_wait,
        task_filter.min_run,
        task_filter.min_silence,
        task_filter.min_attempts,
        task_filter.due_later,
        task_filter.flag,
    )
    yield all(part is None for part in (*foreign, task_filter.retried))


def _id_matches(identity: UUID | None, named: str) -> bool:
    return identity is not None and str(identity).endswith(named.lower())


# What operators did, line by line.

MAX_TASK_IDS: Final = 2
"""So many tasks are named by their ids."""


def log_line(row: AuditRow) -> str:
    """`12:01:08 ana        retry           41 matched         changed 41 skipped 0  "smtp is back"`."""
    why = f'  "{sanitize(row.reason, limit=200)}"' if row.reason else ""
    done = "dry run" if row.dry_run else f"changed {row.affected:,} skipped {row.skipped:,}"
    return f"{format_time(row.at)} {fit(row.actor, 10)} {fit(row.action, 15)} {fit(target_text(row), 18)} {done}{why}"


def entry_lines(row: AuditRow) -> list[str]:
    """Everything that is on record about one action."""
    named, more = " ".join(map(str, row.task_ids[:MAX_TASK_IDS])), len(row.task_ids) - MAX_TASK_IDS
    return [
        (
            f"{row.id}  {row.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z  "
            f"{row.actor} on {row.host} by {row.via}  {action_text(row)}"
        ),
        f"matched {row.matched:,}  changed {row.affected:,}  skipped {row.skipped:,}",
        *([f"asked for {row.filter_json}"] if row.filter_json else []),
        *([f"tasks {named}{f' and {more:,} more' if more > 0 else ''}"] if named else []),
        f"why  {row.reason or '-'}",
    ]


def action_text(row: AuditRow) -> str:
    return f"{row.action} (dry run)" if row.dry_run else row.action


def target_text(row: AuditRow) -> str:
    """What it was done to, as far as a few words say it."""
    asked = cast("dict[str, Any]", row.filter or {})
    if "queue" in asked:
        return f"queue {asked['queue']}"
    for kind in ("workflow", "worker"):
        if f"{kind}_id" in asked:
            return f"{kind} {short_id(str(asked[f'{kind}_id']))}"
    if terms := asked.get("filter"):
        return _filter_values(terms[0])
    return f"task {short_id(row.task_ids[0])}" if len(row.task_ids) == 1 else f"{row.matched:,} matched"


def _filter_values(term: dict[str, Any]) -> str:
    """The values of a filter, which say enough without their names."""
    return " ".join(_value(value) for name, value in term.items() if name != "is_wanted")


def _value(value: object) -> str:
    return ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
