"""Runs schedules in tests: a clock that is moved by hand, and tasks that run inline."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from horsies.app import Horsies
from horsies.client.schedules import encode_schedules
from horsies.client.task import TaskHandle
from horsies.model.settings import TaskSchedule
from horsies.model.task import ScheduledSlot
from horsies.testing.inline import SCHEDULED_SLOT, inline


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredSlot:
    """A slot that fired; `handle` has the result of its task, None for a workflow, which does not run inline."""

    schedule: str
    slot_at: datetime
    handle: TaskHandle[Any] | None


class ScheduleClock:
    """A clock that fires the schedules of an app when it is moved forward."""

    def __init__(self, app: Horsies, at: datetime) -> None:
        self.now = at.astimezone(UTC)
        self._app = app
        schedules = app.get_schedules()
        encoded = encode_schedules(app, schedules)
        # The grid of an interval begins when the clock starts, as it does when a schedule is first stored.
        self._schedules = [
            (schedule, definition.policy.anchored(self.now))
            for schedule, definition in zip(schedules, encoded.definitions, strict=True)
            if definition.enabled
        ]
        self._previous: dict[str, datetime] = {}

    def advance(self, **duration: float) -> list[FiredSlot]:
        """Move the clock, as in `advance(hours=3)`, and fire the slots up to the new time, in order."""
        before, self.now = self.now, self.now + timedelta(**duration)
        due: list[tuple[datetime, TaskSchedule]] = []
        for schedule, policy in self._schedules:
            first = policy.next_slot(before)
            slots = takewhile(lambda slot: slot <= self.now, policy.slots_from(first)) if first else ()
            due += [(slot, schedule) for slot in slots]
        return [self._fire(schedule, slot) for slot, schedule in sorted(due, key=lambda pair: pair[0])]

    def _fire(self, schedule: TaskSchedule, slot: datetime) -> FiredSlot:
        context = ScheduledSlot(
            name=schedule.name, slot_at=slot, previous_slot_at=self._previous.get(schedule.name), fired_at=slot
        )
        self._previous[schedule.name] = slot
        handle = None
        if schedule.task_name is not None:
            token = SCHEDULED_SLOT.set(context)
            try:
                handle = self._app.tasks[schedule.task_name].send(*schedule.args, **schedule.kwargs).unwrap()
            finally:
                SCHEDULED_SLOT.reset(token)
        return FiredSlot(schedule=schedule.name, slot_at=slot, handle=handle)


@contextmanager
def clock(app: Horsies, *, at: datetime) -> Generator[ScheduleClock]:
    """Start a clock at this instant; inside the block, sends run inline, without a database."""
    with inline(app):
        yield ScheduleClock(app, at)
