"""The definition of a task: its function, how its values travel, and what happens when it fails."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

from horsies.codec.task import TaskCodec
from horsies.codec.wire import canonical
from horsies.errors import SourceLocation, TaskDefinitionError, raise_together
from horsies.model.mapping import ExceptionMapper, ExceptionRules
from horsies.model.queues import DEFAULT_QUEUE
from horsies.model.result import Err
from horsies.registry.checks import function_faults, name_faults, option_faults, signature_error, unknown_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horsies.codec.annotations import SignatureFault
    from horsies.model.result import Result
    from horsies.model.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What `@app.task` was given beside the name."""

    queue_name: str | None = None
    priority: int | None = None
    retry_policy: RetryPolicy | None = None
    exception_mapper: ExceptionMapper | None = None
    default_unhandled_error_code: str | None = None
    timeout_ms: int | None = None
    flags: Iterable[str] | Mapping[str, bool] = ()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(each.name for each in fields(cls))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """A task as it is sent and run; everything is known to be sound."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    codec: TaskCodec = field(repr=False)
    queue_name: str
    options: TaskOptions
    flags: Mapping[str, bool]
    location: SourceLocation

    @property
    def is_async(self) -> bool:
        """Whether calling it gives something to await; a wrapper may be async around a function that is not."""
        return any(map(inspect.iscoroutinefunction, (self.function, inspect.unwrap(self.function))))

    @property
    def ok_type(self) -> object:
        """The T of the declared `TaskResult[T, TaskError]`."""
        return get_args(get_type_hints(inspect.unwrap(self.function), include_extras=True)["return"])[0]

    @property
    def exception_rules(self) -> ExceptionRules:
        return ExceptionRules(
            mapper=self.options.exception_mapper or {}, default=self.options.default_unhandled_error_code
        )

    @property
    def max_retries(self) -> int:
        return self.options.retry_policy.max_retries if self.options.retry_policy else 0

    @property
    def stored_options(self) -> str:
        """What travels with each task, so that it is obeyed where this code is not at hand: canonical JSON."""
        policy = self.options.retry_policy
        stored: dict[str, Any] = {}
        if policy is not None:
            stored["retry_policy"] = policy.model_dump(mode="json", exclude_none=True)
        if self.options.timeout_ms is not None:
            stored["timeout_ms"] = self.options.timeout_ms
        return canonical(stored)


def define(
    name: str,
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    queues: Mapping[str, int] | None,
    location: SourceLocation | None,
) -> TaskDefinition:
    """The definition of a task, or every fault of it raised together. `queues` are the custom ones, None by default."""
    known = TaskOptions.names()
    given = TaskOptions(**{key: value for key, value in options.items() if key in known})
    hidden = list(function_faults(function))
    codec: Result[TaskCodec, tuple[SignatureFault, ...]] = Err(()) if hidden else TaskCodec.of(function)
    faults = [
        *unknown_options((key for key in options if key not in known), known),
        *name_faults(name),
        *hidden,
        *(signature_error(name, fault) for fault in (codec.error if isinstance(codec, Err) else ())),
        *option_faults(given, queues),
    ]
    # What hides a function has the line of its decorator's inside, where nothing is wrong.
    where = (location or _place(function)) if hidden else (_place(function) or location)
    for fault in faults:
        fault.location = where
    raise_together(f"task {name!r}", faults, family=TaskDefinitionError)
    return TaskDefinition(
        name=name,
        function=function,
        codec=codec.unwrap(),
        queue_name=given.queue_name or DEFAULT_QUEUE,
        options=given,
        flags=flags_of(given.flags),
        location=where or SourceLocation("<unknown>", 0),
    )


def flags_of(given: Iterable[str] | Mapping[str, bool]) -> dict[str, bool]:
    """Flags by name; a bare list means that each is set."""
    if isinstance(given, Mapping):
        return dict(cast("Mapping[str, bool]", given))
    return dict.fromkeys(given, True)


def _place(function: Callable[..., Any]) -> SourceLocation | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else SourceLocation(code.co_filename, code.co_firstlineno)
