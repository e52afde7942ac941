"""The definition of a task: its function, how its values travel, and what happens when it fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, cast, get_args, get_type_hints

from horsies.codec.arguments import SignatureFault, TaskCodec
from horsies.codec.canonical_json import canonical_json, find_json_fault
from horsies.errors import ErrorCode, HorsiesError, RegistryError, SourceLocation, TaskDefinitionError, raise_together
from horsies.model.result import Err, Result
from horsies.model.retry import RetryPolicy
from horsies.model.task import DEFAULT_QUEUE, is_priority, queue_fault
from horsies.model.task_result import ExceptionMapper, ExceptionRules, mapping_faults

# What can be wrong with the definition of a task, each check yielding the faults it finds.

LONGEST_NAME = 255
SHORTEST_TIMEOUT_MS = 1000


def signature_error(name: str, fault: SignatureFault) -> HorsiesError:
    where = "" if fault.parameter is None else f" parameter {fault.parameter!r}:"
    return TaskDefinitionError(f"task {name!r}:{where} {fault.reason}", code=fault.code, hint=fault.hint)


def unknown_option_faults(names: Iterable[str], known: Iterable[str]) -> Iterator[HorsiesError]:
    elsewhere = {
        "good_until": "it belongs to a send: task.with_options(good_until=…)",
        "auto_retry_for": "it belongs to the policy: retry_policy=RetryPolicy(auto_retry_for=[…])",
    }
    for name in names:
        hint = elsewhere.get(name, f"the options are {', '.join(known)}")
        yield TaskDefinitionError(f"unknown option {name!r}", code=ErrorCode.TASK_INVALID_OPTIONS, hint=hint)


def name_faults(name: object) -> Iterator[HorsiesError]:
    if not is_storable_text(name) or len(name) > LONGEST_NAME:
        text = f"task_name must be text of 1 to {LONGEST_NAME} characters"
        yield _options_error(text, hint='@app.task("emails.send")')


def function_faults(function: object) -> Iterator[HorsiesError]:
    inner = inspect.unwrap(function) if callable(function) else function
    if not inspect.isfunction(inner):
        yield _function_error(
            f"a task must be a plain function, got {_described(inner)}",
            hint="put @app.task above a def or an async def, outside of any class",
        )
    elif _hides_another(inner):
        yield _function_error(
            f"a task must be a plain function, got a decorator's own function {inner.__name__}, which hides another",
            hint="put @app.task outermost, and give other decorators functools.wraps",
        )
    elif inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        yield _function_error(
            f"{inner.__name__} is a generator, and a task returns one result", hint="return a list instead"
        )
    elif owner := _enclosing_class(inner):
        yield _function_error(
            f"{inner.__name__} is a method of {owner}, and a worker has no {owner} to call it on",
            hint="define the task outside the class, and give it what it needs as arguments",
        )


def option_faults(options: TaskOptions, queues: Mapping[str, int] | None) -> Iterator[HorsiesError]:
    if fault := queue_fault(options.queue_name, queues):
        yield fault
    if options.priority is not None and not is_priority(options.priority):
        yield _options_error("priority must be a whole number of 1 to 100, 1 first", hint="priority=10")
    if options.retry_policy is not None and not isinstance(options.retry_policy, RetryPolicy):
        hint = 'retry_policy=RetryPolicy.fixed([10, 60], auto_retry_for=["UPSTREAM_DOWN"])'
        yield _options_error("retry_policy must be a RetryPolicy", hint=hint)
    timeout = options.timeout_ms
    if timeout is not None and (
        not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < SHORTEST_TIMEOUT_MS
    ):
        text = f"timeout_ms must be a whole number of at least {SHORTEST_TIMEOUT_MS}"
        yield _options_error(text, hint="it counts milliseconds: timeout_ms=30_000 is half a minute")
    yield from flag_faults(options.flags)
    rules = ExceptionRules(mapper=options.exception_mapper or {}, default=options.default_unhandled_error_code)
    yield from mapping_faults(rules)


def flag_faults(flags: object) -> Iterator[HorsiesError]:
    if isinstance(flags, str) or not isinstance(flags, (list, tuple, set, frozenset, dict)):
        yield _flags_error()
        return
    names = list(cast("Iterable[object]", flags))
    values = list(cast("dict[object, object]", flags).values()) if isinstance(flags, dict) else []
    if not (all(is_storable_text(name) for name in names) and all(isinstance(value, bool) for value in values)):
        yield _flags_error()


def _hides_another(function: FunctionType) -> bool:
    """Whether this is the inside of a decorator that left no trace of what it wraps: it takes anything, says nothing
    of its types, and keeps a function to pass it on to."""
    if function.__annotations__ or function.__closure__ is None:
        return False
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    takes_anything = kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    return takes_anything and any(callable(cell.cell_contents) for cell in function.__closure__)


def _enclosing_class(function: FunctionType) -> str | None:
    """The class whose body a method stands in; None for a function."""
    outer, _, _ = function.__qualname__.rpartition(".")
    is_method = next(iter(inspect.signature(function).parameters), None) in ("self", "cls")
    return outer.rpartition(".")[2] if is_method and outer and not outer.endswith("<locals>") else None


def is_storable_text(value: object) -> TypeGuard[str]:
    """Whether value is text that the database can hold, and not empty."""
    return isinstance(value, str) and value != "" and find_json_fault(str(value)) is None


def _described(thing: object) -> str:
    """What stands in the place of a function."""
    match thing:
        case type():
            return f"the class {thing.__qualname__}"
        case MethodType():
            return f"a bound method of {type(thing.__self__).__qualname__}"
        case BuiltinFunctionType():
            return f"the built-in {thing.__name__}"
        case _:
            return f"an object of class {type(thing).__qualname__}"


def _flags_error() -> HorsiesError:
    text = "flags must be a list of names or a dict of name → bool"
    return _options_error(text, hint='flags=["infrastructure_resilient"]')


def _function_error(text: str, *, hint: str) -> HorsiesError:
    return TaskDefinitionError(text, code=ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED, hint=hint)


def _options_error(text: str, *, hint: str) -> HorsiesError:
    return TaskDefinitionError(text, code=ErrorCode.TASK_INVALID_OPTIONS, hint=hint)


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
    def options_json(self) -> str:
        """What travels with each task, so that it is obeyed where this code is not at hand: canonical JSON."""
        policy = self.options.retry_policy
        stored: dict[str, Any] = {}
        if policy is not None:
            stored["retry_policy"] = policy.model_dump(mode="json", exclude_none=True)
        if self.options.timeout_ms is not None:
            stored["timeout_ms"] = self.options.timeout_ms
        return canonical_json(stored)


def define_task(
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
        *unknown_option_faults((key for key in options if key not in known), known),
        *name_faults(name),
        *hidden,
        *(signature_error(name, fault) for fault in (codec.error if isinstance(codec, Err) else ())),
        *option_faults(given, queues),
    ]
    # What hides a function has the line of its decorator's inside, where nothing is wrong.
    where = (location or _source_location(function)) if hidden else (_source_location(function) or location)
    for fault in faults:
        fault.location = where
    raise_together(f"task {name!r}", faults, family=TaskDefinitionError)
    return TaskDefinition(
        name=name,
        function=function,
        codec=codec.unwrap(),
        queue_name=given.queue_name or DEFAULT_QUEUE,
        options=given,
        flags=normalize_flags(given.flags),
        location=where or SourceLocation("<unknown>", 0),
    )


def normalize_flags(given: Iterable[str] | Mapping[str, bool]) -> dict[str, bool]:
    """Flags by name; a bare list means that each is set."""
    if isinstance(given, Mapping):
        return dict(cast("Mapping[str, bool]", given))
    return dict.fromkeys(given, True)


def _source_location(function: Callable[..., Any]) -> SourceLocation | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else SourceLocation(code.co_filename, code.co_firstlineno)


# Tasks by name.


class HasDefinition(Protocol):
    @property
    def definition(self) -> TaskDefinition: ...


D = TypeVar("D", bound=HasDefinition)


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
