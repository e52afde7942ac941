"""The workflows of an app: made while modules are imported, and the functions that make them later."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from horsies.app.refusals import StandIn, refuse
from horsies.client.workflow.spec import WorkflowSpec
from horsies.errors import HorsiesError, SourceLocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

P = ParamSpec("P")
S = TypeVar("S", bound=WorkflowSpec[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowBuilder:
    """A function that returns a spec, and the arguments with which `check` calls it, once for each case."""

    function: Callable[..., Any]
    cases: Sequence[Mapping[str, Any]] | None
    location: SourceLocation | None

    @property
    def name(self) -> str:
        return self.function.__qualname__


class Builders:
    """The builders of an app, in the order of registration; each function once."""

    def __init__(self) -> None:
        self._builders: list[WorkflowBuilder] = []

    def __iter__(self) -> Iterator[WorkflowBuilder]:
        return iter(tuple(self._builders))

    def __contains__(self, function: object) -> bool:
        return any(builder.function is function for builder in self._builders)

    def register(self, cases: Sequence[Mapping[str, Any]] | None) -> Callable[[Callable[P, S]], Callable[P, S]]:
        def keep(function: Callable[P, S]) -> Callable[P, S]:
            if function not in self:
                code = inspect.unwrap(function).__code__
                location = SourceLocation(code.co_filename, code.co_firstlineno)
                self._builders.append(WorkflowBuilder(function=function, cases=cases, location=location))
            return function

        return keep


def spec_or_stand_in(tasks: Sequence[object], make: Callable[[], WorkflowSpec[Any]]) -> Any:
    """The spec; where refusals are noted, a stand-in for one that is refused or has a refused task among its nodes."""
    if any(isinstance(each, StandIn) for each in tasks):
        return StandIn()
    try:
        return make()
    except HorsiesError as error:
        return refuse(error)
