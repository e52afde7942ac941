"""Tasks by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from horsies.errors import ErrorCode, RegistryError

if TYPE_CHECKING:
    from horsies.registry.definition import TaskDefinition


class Defined(Protocol):
    @property
    def definition(self) -> TaskDefinition: ...


D = TypeVar("D", bound=Defined)


class TaskRegistry(Mapping[str, D], Generic[D]):
    """The tasks of one app. A name belongs to one place in the source: importing that place again changes nothing."""

    def __init__(self) -> None:
        self._by_name: dict[str, D] = {}

    def register(self, task: D) -> D:
        """Keep `task` under its name and return the one that is registered: an earlier one from the same line stays."""
        new = task.definition
        known = self._by_name.setdefault(new.name, task)
        if known is not task and known.definition.location != new.location:
            raise RegistryError(
                f"task name {new.name!r} is taken",
                code=ErrorCode.TASK_DUPLICATE_NAME,
                notes=[f"first defined at {known.definition.location}"],
                hint="give each task a name of its own",
                location=new.location,
            )
        return known

    def find(self, name: str) -> D:
        """The task called `name`; HRS-300 where there is none."""
        if name not in self._by_name:
            raise RegistryError(
                f"no task is called {name!r}",
                code=ErrorCode.TASK_NOT_REGISTERED,
                hint=f"registered are: {', '.join(sorted(self._by_name)) or 'none'}",
            )
        return self._by_name[name]

    def __getitem__(self, name: str) -> D:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)
