"""The invented system itself: tasks that are sent, claimed, run and end, as time passes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies_ops.reads.changes import Change, Topic
from horsies_ops.reads.tasks import TaskFacts
from horsies_tui.demo import flow_past
from horsies_tui.demo.catalogue import KINDS, QUEUES, WORKERS, Kind, Member
from horsies_tui.demo.flows import Flows
from horsies_tui.demo.keeping import Keeping
from horsies_tui.demo.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_EVERY = timedelta(seconds=5)
LAST_SEEN = timedelta(minutes=6, seconds=10)
"""How long the worker that is gone had been silent at the beginning."""
_NOTHING = timedelta(0)
_PRIORITIES = {queue.name: queue.priority for queue in QUEUES}
_KINDS = {kind.name: kind for kind in KINDS}


class System:
    """Tasks by id, and the moves between their states. Time comes from `now`, chance from the seed."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, seed: int = 7) -> None:
        self.now = now
        self.tasks: dict[UUID, TaskFacts] = {}
        self.order: list[UUID] = []
        self.flows = Flows(self)
        self.record = Record(now)
        self.keeping = Keeping(self)
        self.began = now()
        self.last_seen = self.began - LAST_SEEN
        """Of the worker that is gone."""
        self._random = Random(seed)  # noqa: S311  # invented data
        self._moves: Counter[tuple[str, str, str]] = Counter()
        self._moved: dict[tuple[str, str, str], list[UUID]] = {}
        self._steps = 0

    @classmethod
    def busy(
        cls, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, size: int = 2000, seed: int = 7
    ) -> System:
        """One with a past of an hour: `size` tasks, most of them done, some stale, some waiting."""
        system = cls(now, seed=seed)
        for number in range(size, 0, -1):
            system._remember(timedelta(seconds=3600 * number / size + 30))
        system._leave_stale_tasks()
        for _ in range(40):
            system.step()
        flow_past.remember(system)
        system._remember_operators()
        system.keeping.remember()
        system.changes()
        return system

    def send(
        self, kind: Kind, *, at: datetime | None = None, delay: timedelta = _NOTHING, **fields: object
    ) -> TaskFacts:
        sent_at = at or self.now()
        task = TaskFacts(
            id=self._identity(sent_at), name=kind.name, queue=kind.queue, status=TaskStatus.PENDING,
            priority=_PRIORITIES[kind.queue], attempt_count=0, retry_count=0, max_retries=kind.max_retries,
            crash_count=0, error_code=None, sent_at=sent_at, enqueued_at=sent_at + delay, claimed_at=None,
            started_at=None, finished_at=None, good_until=None, next_retry_at=None, worker_id=None,
            worker_hostname=None, worker_pid=None, workflow_id=None, flags_json="{}", age=_NOTHING,
            last_beat_at=None, silence=None, args_json="[]",
            kwargs_json=kind.kwargs_json, result_json=None, failed_reason=None, claim_token=0, claim_expires_at=None,
            recovery_hold_until=None, overlap_possible=False, no_restart=None, options_json="{}", idempotency_key=None,
            retry_of=None,
        )  # fmt: skip
        task = replace(task, **fields)
        self.tasks[task.id] = task
        self.order.insert(bisect_left(self.order, task.id), task.id)
        return task

    def move(self, task_id: UUID, status: TaskStatus, **fields: object) -> TaskFacts:
        """Put a task into another state."""
        task = self.tasks[task_id]
        key = (task.queue, task.status, status.value)
        self._moves[key] += 1
        self._moved.setdefault(key, []).append(task_id)
        moved = replace(task, **{"status": status, **fields})
        self.tasks[task_id] = moved
        return moved

    def step(self) -> None:
        """A quarter of a second of work."""
        self._steps += 1
        now = self.now()
        # Every half minute a storm of mail.
        sent = self._random.randint(20, 40) if self._steps % 120 == 0 else self._random.randint(0, 3)
        for _ in range(sent):
            delay = timedelta(minutes=self._random.randint(1, 90)) if self._random.random() < 0.03 else _NOTHING
            self.send(self._kind(), delay=delay)
        self._end_some(now)
        self._begin_some(now)
        self._beat(now)
        self.flows.step()

    def changes(self) -> list[Change]:
        """What has moved since they were last asked for, added up as a worker does it."""
        moved = [
            Change(
                topic=Topic.TASKS, kind="moved", at=self.now(), queue=queue, from_status=before, to_status=after,
                count=count, ids=tuple(self._moved[queue, before, after][:16]),
            )
            for (queue, before, after), count in self._moves.items()
        ]  # fmt: skip
        self._moves.clear()
        self._moved.clear()
        return moved

    def in_state(self, *statuses: TaskStatus) -> list[TaskFacts]:
        return [task for task in self.tasks.values() if task.status in statuses]

    def _begin_some(self, now: datetime) -> None:
        room = {member.id: member.processes for member in WORKERS if not member.is_gone}
        for task in self.in_state(TaskStatus.RUNNING, TaskStatus.CLAIMED):
            if task.worker_id is not None and task.worker_id in room:
                room[task.worker_id] -= 1
        waiting = self.in_state(TaskStatus.PENDING)
        due = [task for task in waiting if task.enqueued_at <= now and task.queue not in self.record.paused]
        for task in sorted(due, key=lambda each: (each.priority, each.id))[:8]:
            takers = [member for member in WORKERS if room.get(member.id, 0) > 0 and task.queue in member.queues]
            if takers:
                member = self._random.choice(takers)
                room[member.id] -= 1
                self._start(task, member, now)

    def _start(
        self, task: TaskFacts, member: Member, now: datetime, *, status: TaskStatus = TaskStatus.RUNNING
    ) -> None:
        is_started = status is TaskStatus.RUNNING
        self.move(
            task.id, status, claimed_at=now, started_at=now if is_started else None, last_beat_at=now,
            claim_token=task.claim_token + 1, worker_id=member.id,
            worker_hostname=member.hostname, worker_pid=member.pid,
        )  # fmt: skip

    def _end_some(self, now: datetime) -> None:
        gone = {member.id for member in WORKERS if member.is_gone}
        for task in self.in_state(TaskStatus.RUNNING):
            kind = _KINDS[task.name]
            # A quarter of a second of a task that takes so long: the chance that it ends in it.
            is_at_work = task.worker_id not in gone and task.id not in self.keeping.blocked
            if is_at_work and self._random.random() < 0.25 / kind.run_s:
                self._end(task, kind, now)

    def _end(self, task: TaskFacts, kind: Kind, now: datetime) -> None:
        task = self.tasks[task.id] = replace(task, attempt_count=task.attempt_count + 1)
        if self._random.random() >= kind.failures:
            self.move(task.id, TaskStatus.COMPLETED, finished_at=now, last_beat_at=None, result_json='{"ok": true}')
        elif task.attempt_count <= task.max_retries and self._random.random() < 0.5:
            retry_at = now + timedelta(seconds=60)
            self.move(
                task.id, TaskStatus.PENDING, enqueued_at=retry_at, retry_count=task.retry_count + 1, last_beat_at=None,
                next_retry_at=retry_at,
            )  # fmt: skip
        else:
            self.move(
                task.id, TaskStatus.FAILED, finished_at=now, last_beat_at=None, error_code=kind.error,
                failed_reason=kind.message,
            )  # fmt: skip

    def _beat(self, now: datetime) -> None:
        gone = {member.id for member in WORKERS if member.is_gone}
        for task in self.in_state(TaskStatus.RUNNING, TaskStatus.CLAIMED):
            is_mute = task.worker_id in gone or task.id in self.keeping.blocked
            if not is_mute and task.last_beat_at is not None and now - task.last_beat_at > BEAT_EVERY:
                self.tasks[task.id] = replace(task, last_beat_at=now)

    def _remember(self, ago: timedelta) -> None:
        """A task of the past that has run its course."""
        kind, sent_at = self._kind(), self.now() - ago
        task = self.send(kind, at=sent_at)
        started = sent_at + timedelta(seconds=self._random.random() * 4)
        self._start(task, self._random.choice(WORKERS[:3]), started)
        ended = started + timedelta(seconds=kind.run_s * (0.5 + self._random.random()))
        self._end(self.tasks[task.id], kind, ended)

    def _remember_operators(self) -> None:
        ago = self.began - timedelta(minutes=17)
        self.record.write("sweep", affected=6, reason="hourly", actor="cron", at=ago)
        failed = {"filter": [{"is_wanted": True, "statuses": ["FAILED"], "names": ["mail.send"]}]}
        ago = self.began - timedelta(minutes=3, seconds=23)
        self.record.write("retry", affected=41, reason="smtp is back", about=failed, actor="ana", at=ago)

    def _leave_stale_tasks(self) -> None:
        """What the worker that is gone had in its hands."""
        gone = next(member for member in WORKERS if member.is_gone)
        silences = {"mail.send": 680, "report.build": 542, "scrape.page": 464}
        for name, silence_s in silences.items():
            then = self.now() - timedelta(seconds=silence_s)
            task = self.send(
                _KINDS[name], at=then - timedelta(minutes=14), attempt_count=1, retry_count=1, claim_token=1
            )
            self._start(task, gone, then - timedelta(minutes=8))
            self.tasks[task.id] = replace(self.tasks[task.id], last_beat_at=then)
        for silence_s in (160, 131):
            then = self.now() - timedelta(seconds=silence_s)
            task = self.send(_KINDS["mail.send"], at=then - timedelta(seconds=9))
            self._start(task, gone, then, status=TaskStatus.CLAIMED)

    def _kind(self) -> Kind:
        return self._random.choices(KINDS, weights=[kind.share for kind in KINDS])[0]

    def _identity(self, at: datetime) -> UUID:
        """A UUIDv7: a clock in milliseconds, then chance."""
        clock = int(at.timestamp() * 1000) << 80
        chance = self._random.getrandbits(74)
        return UUID(int=clock | 0x7 << 76 | (chance >> 62) << 64 | 0b10 << 62 | chance & (1 << 62) - 1)
