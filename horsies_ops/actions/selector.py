"""Which tasks an action is about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from horsies.model.ids import parse_id
from horsies_ops.reads.filter import TaskFilter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Tasks by their ids, or all that match a filter at an instant of the database's clock.

    A filter that names nothing would mean the whole table and is refused. `as_of` keeps out what came or ended later;
    a plan sets it, and `last_id`, the newest task that it found, so that what arrives afterwards is never included.
    """

    ids: tuple[UUID, ...] | None = None
    filter: TaskFilter | None = None
    as_of: datetime | None = None
    last_id: UUID | None = None

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("a selector has ids or a filter, and not both")
        if self.filter is not None and self.filter.is_empty:
            raise ValueError("a filter that names nothing means every task there is; say which are meant")

    @classmethod
    def of_ids(cls, ids: Iterable[str | UUID]) -> Selector:
        """These tasks, each once, in this order; `ValueError` for what is no id."""
        known = (each if isinstance(each, UUID) else UUID(parse_id(each)) for each in ids)
        return cls(ids=tuple(dict.fromkeys(known)))

    @classmethod
    def matching(cls, filter: TaskFilter, *, as_of: datetime | None = None) -> Selector:  # noqa: A002  # the documented name
        """All that match now, or did at `as_of`."""
        return cls(filter=filter, as_of=as_of)

    @classmethod
    def of(cls, which: Which) -> Selector:
        match which:
            case Selector():
                return which
            case TaskFilter():
                return cls.matching(which)
            case str() | UUID():
                return cls.of_ids([which])
            case _:
                return cls.of_ids(which)

    def document(self) -> dict[str, object]:
        """What the audit keeps of it."""
        if self.filter is None:
            return {"ids": [str(each) for each in (self.ids or ())[:1000]]}
        return {
            "filter": json.loads(self.filter.to_json()),
            "as_of": None if self.as_of is None else self.as_of.isoformat(),
            "last_id": None if self.last_id is None else str(self.last_id),
        }


Which: TypeAlias = "Selector | TaskFilter | str | UUID | Iterable[str | UUID]"
"""How tasks may be named: a selector, a filter, one id or several."""
