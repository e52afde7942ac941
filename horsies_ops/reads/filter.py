"""Which tasks are meant."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from horsies.model.ids import parse_id
from horsies.model.task import TaskStatus
from horsies_ops.reads.globs import like
from horsies_ops.reads.lookup import is_short_form

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Tasks for which every part that is given holds; a part with several values holds when one of them fits.

    `names` and `error_codes` are globs with `*` and `?`. An id may be whole or its last eight digits. Ages count from
    the send, `min_wait` from when the task was due, `min_silence` from the last beat of the claim that a live task is
    under. `text` is looked for in name, arguments and error, in upper and lower case. What `exclude`, or any filter of
    several, matches is left out. A filter that makes no sense is a `ValueError` at once.
    """

    ids: Sequence[str] = ()
    statuses: Sequence[TaskStatus | str] = ()
    queues: Sequence[str] = ()
    names: Sequence[str] = ()
    error_codes: Sequence[str] = ()
    worker_id: str | None = None
    workflow_id: str | None = None
    flag: str | None = None
    retried: bool | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    text: str | None = None
    min_wait: timedelta | None = None
    min_run: timedelta | None = None
    min_silence: timedelta | None = None
    min_attempts: int | None = None
    due_later: bool | None = None
    exclude: TaskFilter | Sequence[TaskFilter] | None = None

    def __post_init__(self) -> None:
        for status in self.statuses:
            TaskStatus(status)
        for identity in (*self.ids, self.worker_id, self.workflow_id):
            if identity is not None and not is_short_form(identity):
                parse_id(identity)
        if any(each.excluded for each in self.excluded):
            raise ValueError("a filter within exclude cannot exclude in turn")

    @property
    def excluded(self) -> tuple[TaskFilter, ...]:
        """The filters of `exclude`, however many; one without parts excludes nothing."""
        given = (self.exclude,) if isinstance(self.exclude, TaskFilter) else self.exclude or ()
        return tuple(each for each in given if _parts(each) or each.exclude)

    @property
    def is_empty(self) -> bool:
        """Whether every task matches."""
        return not _parts(self) and not self.excluded

    def to_json(self) -> str:
        """The filter, and those that it excludes, as the statements take them."""
        terms = [{"is_wanted": True, **_parts(self)}]
        return json.dumps(terms + [{"is_wanted": False, **_parts(each)} for each in self.excluded])


def _parts(wanted: TaskFilter) -> dict[str, object]:
    """The parts that are given, as plain JSON."""
    given = {each.name: getattr(wanted, each.name) for each in fields(wanted) if each.name != "exclude"}
    return {name: _plain(name, value) for name, value in given.items() if value not in (None, (), [])}


def _plain(name: str, value: object) -> object:
    match name, value:
        case "names" | "error_codes", _:
            return [like(glob) for glob in cast("Sequence[str]", value)]
        case "statuses" | "queues", _:
            return list(cast("Sequence[str]", value))
        case "ids", _:
            return [each.lower() for each in cast("Sequence[str]", value)]
        case "worker_id" | "workflow_id", str():
            return value.lower()
        case _, timedelta():
            return f"{value.total_seconds()} seconds"
        case _:
            return value
