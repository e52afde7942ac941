"""Entries of the event stream (changes, recorded events, operator actions) and lines of the operator log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from horsies.model.events import EventKind
from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.reads.filters import ConditionTests, TaskFilter, is_match, matches_any_glob
from horsies_tui.format import fit, format_age, format_time, sanitize, short_id
from horsies_tui.widgets.page import stored_json
from horsies_tui.widgets.row_list import Tone

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow, EventRow
    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.data.queries import LoggedChange


_WORKER_IDS: Final = frozenset({"owner", "sweeper"})
NOTABLE_KINDS: Final = (EventKind.WORKER_LOST, EventKind.TASK_RECOVERED, EventKind.TASK_POISONED)
MAX_SILENCE_S: Final = 1e9
"""Evidence may contain any number; more than this is shown as this."""
MAX_TASK_IDS: Final = 2
"""How many task ids a log entry lists in full."""


class EntryKind(StrEnum):
    TASK = "task"
    WORKER = "worker"
    WORKFLOW = "flow"
    EVENT = "event"
    OPERATOR = "op"
    FEED = "feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEntry:
    """One line of the event stream, standing for `count` similar events."""

    key: str
    at: datetime
    kind: EntryKind
    summary: str
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
    headline: str = ""
    """Set if the dashboard keeps it above the stream of changes for a while: the evidence in a few words."""

    @property
    def group_name(self) -> str:
        """The name shared by similar entries: actor and action, task name, or queue."""
        if self.kind is EntryKind.OPERATOR:
            return self.subject
        return self.name or (f"in {self.queue}" if self.queue else "")

    @property
    def group_key(self) -> tuple[str, ...]:
        """Entries with the same key may be folded; only task changes and operator actions fold."""
        return (
            (self.kind, self.group_name, self.summary)
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
    EventKind.TASK_UNKNOWN: Tone.WARN,
    EventKind.FLEET_MISMATCH: Tone.WARN,
}
"""Tones by status or kind; all others are PLAIN."""

_FEED_TEXT: Final = {
    FeedStatus.STARTED: "listening",
    FeedStatus.RESTORED: "reconnected, resynced",
    FeedStatus.POLLING: "polling",
    FeedStatus.LOST: "connection lost",
}


# Entries of the event stream


def entry_from_change(
    logged: LoggedChange, known_tasks: Mapping[UUID, TaskSummary], *, offset: timedelta
) -> StreamEntry:
    """Convert a change; `offset` is how far the database clock is ahead of the local one."""
    change = logged.change
    key, at = f"change {logged.number}", change.at + offset
    match change.topic:
        case Topic.FEED:
            return StreamEntry(
                key=key,
                at=at,
                kind=EntryKind.FEED,
                subject=change.kind,
                summary=_FEED_TEXT[FeedStatus(change.kind)],
                tone=_tone(change),
                note=change.detail.splitlines()[0] if change.detail else "",
            )
        case Topic.WORKFLOW:
            run_id = change.ids[0] if change.ids else None
            return StreamEntry(
                key=key,
                at=at,
                kind=EntryKind.WORKFLOW,
                subject=short_id(run_id),
                summary="finished or paused",
                workflow_id=run_id,
            )
        case _:
            return _entry_from_task_change(key, at, change, known_tasks)


def _entry_from_task_change(
    key: str, at: datetime, change: Change, known_tasks: Mapping[UUID, TaskSummary]
) -> StreamEntry:
    tasks = [known_tasks[task_id] for task_id in change.ids if task_id in known_tasks]
    names = {task.name for task in tasks}
    name = names.pop() if len(names) == 1 else None
    code = tasks[0].error_code if change.count == 1 and tasks and change.to_status == TaskStatus.FAILED else None
    to_status = change.to_status or TaskStatus.PENDING
    who = short_id(change.ids[0]) if change.count == 1 and change.ids else f"×{change.count:,}"
    # A change need not carry a worker; with a single known task, that task's worker is shown.
    worker_id = change.worker_id or (tasks[0].worker_id if len(tasks) == 1 else None)
    return StreamEntry(
        key=key,
        at=at,
        kind=EntryKind.TASK,
        subject=f"{who} {name or (f'in {change.queue}' if change.queue else '')}".rstrip(),
        summary=f"{change.from_status or 'new'} → {to_status}",
        note=code or ("" if worker_id is None else f"worker {short_id(worker_id)}"),
        tone=_tone(change),
        count=change.count,
        ids=change.ids,
        name=name,
        queue=change.queue,
        statuses=tuple(filter(None, (change.from_status, to_status))),
        error_code=code,
        worker_id=change.worker_id,
    )


def _tone(change: Change) -> Tone:
    return _TONES.get(change.to_status or change.kind, Tone.PLAIN)


def entry_from_event(row: EventRow, known_tasks: Mapping[UUID, TaskSummary]) -> StreamEntry:
    """Convert a row of `horsies_events`, with its evidence as the note."""
    stored = stored_json(lambda: row.evidence)
    values = cast("dict[str, object]", stored) if isinstance(stored, dict) else {"evidence": stored}
    # A narrow column cuts the end, so the decision and its reason come before the ids of the workers.
    shown = sorted((item for item in values.items() if item[1] is not None), key=lambda item: item[0] in _WORKER_IDS)
    evidence = " ".join(f"{name}={value}" for name, value in shown)
    task = None if row.task_id is None else known_tasks.get(row.task_id)
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
        summary=row.kind.replace("_", " "),
        note=sanitize(evidence, limit=300),
        tone=_TONES.get(row.kind, Tone.PLAIN),
        ids=() if row.task_id is None else (row.task_id,),
        name=None if task is None else task.name,
        queue=row.queue,
        worker_id=row.worker_id,
        workflow_id=row.workflow_id,
        headline=_headline(row.kind, values) if row.kind in NOTABLE_KINDS else "",
    )


def _headline(kind: str, evidence: Mapping[str, object]) -> str:
    """Return what matters most in the evidence, for the dashboard."""
    silence = evidence.get("silence_s")
    silent = ""
    if isinstance(silence, (int, float)):
        silent = f"silent for {format_age(timedelta(seconds=min(max(silence, 0), MAX_SILENCE_S)))}"
    if kind == EventKind.TASK_POISONED:
        return f"crashed {evidence.get('crash_count')} times"
    parts = [evidence.get("decision"), evidence.get("code"), silent]
    return ", ".join(str(part) for part in parts if part) or "no details"


def entry_from_audit(row: AuditRow) -> StreamEntry:
    """Convert an operator action."""
    return StreamEntry(
        key=f"action {row.id}",
        at=row.at,
        kind=EntryKind.OPERATOR,
        subject=f"{sanitize(row.actor, limit=40)} {_words(row.action)}",
        summary="dry run" if row.dry_run else f"{row.affected:,} changed, {row.skipped:,} skipped",
        note=f'"{sanitize(row.reason, limit=200)}"' if row.reason else f"{row.matched:,} matched",
        ids=tuple(row.task_ids),
    )


# Filtering


def matches(entry: StreamEntry, task_filter: TaskFilter, now: datetime) -> bool:
    """Whether an entry matches a task filter; conditions on data that entries lack never match."""
    return is_match(entry, task_filter, _CONDITION_TESTS, now)


def _ends_with(entry_id: UUID | None, pattern: str) -> bool:
    # A short id is the end of the full one.
    return str(entry_id).endswith(pattern.lower())


_CONDITION_TESTS: Final[ConditionTests[StreamEntry]] = {
    "statuses": lambda entry, statuses, _: not set(statuses).isdisjoint(entry.statuses),
    "queues": lambda entry, queues, _: entry.queue in queues,
    "names": lambda entry, globs, _: matches_any_glob(entry.name or "", globs),
    "error_codes": lambda entry, globs, _: matches_any_glob(entry.error_code or "", globs),
    "ids": lambda entry, ids, _: any(_ends_with(task_id, pattern) for task_id in entry.ids for pattern in ids),
    "worker_id": lambda entry, pattern, _: _ends_with(entry.worker_id, pattern),
    "workflow_id": lambda entry, pattern, _: _ends_with(entry.workflow_id, pattern),
    "text": lambda entry, text, _: text.lower() in f"{entry.subject} {entry.summary} {entry.note}".lower(),
    "newer_than": lambda entry, age, now: now - entry.at < age,
    "older_than": lambda entry, age, now: now - entry.at > age,
}


# Operator log


NO_ACTIONS: Final = "no actions yet; retries and pauses appear here"


def log_line(row: AuditRow) -> str:
    """`12:01:08 ana        retry           41 matched         changed 41 skipped 0  "smtp is back"`."""
    reason = f'  "{sanitize(row.reason, limit=200)}"' if row.reason else ""
    result = "dry run" if row.dry_run else f"changed {row.affected:,} skipped {row.skipped:,}"
    who = f"{format_time(row.at)} {fit(row.actor, 10)} {fit(_words(row.action), 15)}"
    return f"{who} {fit(target_text(row), 18)} {result}{reason}"


def short_log_line(row: AuditRow) -> str:
    """`12:01:08 ana      retry    ×41 FAILED mail.send "smtp is back"`, for a narrow pane."""
    target = target_text(row)
    # "pause" with the target "queue mail", not "pause queue".
    action = _words(row.action).removesuffix(f" {target.partition(' ')[0]}")
    result = "dry run" if row.dry_run else f"×{row.affected:,}"
    # No named target: the number of tasks is enough.
    what = "" if target.endswith(" matched") else f" {target}"
    reason = f' "{sanitize(row.reason, limit=200)}"' if row.reason else ""
    return f"{format_time(row.at)} {fit(row.actor, 8)} {fit(action, 8)} {result}{what}{reason}"


def entry_lines(row: AuditRow) -> list[str]:
    """Return the full record of one operator action."""
    ids, more = " ".join(map(str, row.task_ids[:MAX_TASK_IDS])), len(row.task_ids) - MAX_TASK_IDS
    return [
        (
            f"{row.id}  {row.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z  "
            f"{row.actor} on {row.host} via {row.via}  {action_text(row)}"
        ),
        f"matched {row.matched:,}  changed {row.affected:,}  skipped {row.skipped:,}",
        *([f"selector {json.dumps(stored_json(lambda: row.filter), ensure_ascii=False)}"] if row.filter_json else []),
        *([f"tasks {ids}{f' and {more:,} more' if more > 0 else ''}"] if ids else []),
        f"reason {row.reason or '-'}",
    ]


def action_text(row: AuditRow) -> str:
    return f"{_words(row.action)} (dry run)" if row.dry_run else _words(row.action)


def _words(action: str) -> str:
    """`pause queue` for the stored name `pause_queue`."""
    return action.replace("_", " ")


def target_text(row: AuditRow) -> str:
    """Return what the action was applied to, in a few words."""
    stored = stored_json(lambda: row.filter)
    selector = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
    if "queue" in selector:
        return f"queue {selector['queue']}"
    for kind in ("workflow", "worker"):
        if f"{kind}_id" in selector:
            return f"{kind} {short_id(str(selector[f'{kind}_id']))}"
    if terms := selector.get("filter"):
        return " ".join(_term_text(name, value) for name, value in terms[0].items() if name != "is_wanted")
    return f"task {short_id(row.task_ids[0])}" if len(row.task_ids) == 1 else f"{row.matched:,} matched"


def _term_text(name: str, value: object) -> str:
    """One condition in a narrow column: its value alone is clear enough, unless it is yes or no."""
    if isinstance(value, bool):
        return f"{'' if value else 'not '}{_words(name)}"
    return ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
