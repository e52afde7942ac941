"""Task definitions: function, options and codec, validated when the task is decorated; and the task registry."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeGuard, TypeVar, cast, get_args, get_type_hints

from horsies.codec.arguments import SignatureFault, TaskCodec
from horsies.codec.canonical_json import canonical_json, find_json_fault
from horsies.errors import ErrorCode, HorsiesError, RegistryError, SourceLocation, TaskDefinitionError, raise_together
from horsies.model.result import Err, Result
from horsies.model.retry import RetryPolicy
from horsies.model.task import DEFAULT_QUEUE, is_priority, queue_fault
from horsies.model.task_result import ExceptionMapper, ExceptionRules, mapping_faults

if TYPE_CHECKING:
    from pydantic import JsonValue

MAX_NAME_LENGTH = 255
MIN_TIMEOUT_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of `@app.task`."""

    queue_name: str | None = None
    priority: int | None = None
    retry_policy: RetryPolicy | None = None
    exception_mapper: ExceptionMapper | None = None
    default_unhandled_error_code: str | None = None
    timeout_ms: int | None = None
    flags: Iterable[str] | Mapping[str, bool] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """A validated task: everything needed to send and run it."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    codec: TaskCodec = field(repr=False)
    queue_name: str
    options: TaskOptions
    flags: Mapping[str, bool]
    location: SourceLocation

    @property
    def is_async(self) -> bool:
        """Whether a call must be awaited; a wrapper may be async around a function that is not."""
        return any(map(inspect.iscoroutinefunction, (self.function, inspect.unwrap(self.function))))

    @property
    def ok_type(self) -> object:
        """The declared type of the ok value: the T of `TaskResult[T, TaskError]`, or a plain return type."""
        declared = get_type_hints(inspect.unwrap(self.function), include_extras=True)["return"]
        return declared if self.codec.is_plain else get_args(declared)[0]

    @property
    def exception_rules(self) -> ExceptionRules:
        return ExceptionRules(
            mapper=self.options.exception_mapper or {}, default=self.options.default_unhandled_error_code
        )

    @property
    def max_retries(self) -> int:
        return self.options.retry_policy.max_retries if self.options.retry_policy else 0

    @property
    def params_schema(self) -> dict[str, JsonValue]:
        """The parameters by name, each with its position, kind, annotation and whether it is required."""
        parameters = inspect.signature(inspect.unwrap(self.function)).parameters.values()
        return {
            parameter.name: {
                "position": position,
                "kind": parameter.kind.name.lower(),
                "type": inspect.formatannotation(parameter.annotation),
                "required": parameter.default is parameter.empty,
            }
            for position, parameter in enumerate(parameters)
        }

    @property
    def options_json(self) -> str:
        """The options stored with each task, for processes that do not have its code; canonical JSON."""
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
    """Validate and build a task definition; raises all faults together. `queues` is None in queue mode default."""
    known = [option.name for option in fields(TaskOptions)]
    given = TaskOptions(**{key: value for key, value in options.items() if key in known})
    # The signature of something that is not a function would only add faults that follow from the first one.
    not_a_function = list(function_faults(function))
    codec: Result[TaskCodec, tuple[SignatureFault, ...]] = Err(()) if not_a_function else TaskCodec.of(function)
    faults = [
        *unknown_option_faults((key for key in options if key not in known), known),
        *name_faults(name),
        *not_a_function,
        *(signature_error(name, fault) for fault in (codec.error if isinstance(codec, Err) else ())),
        *option_faults(given, queues),
    ]
    # The source line of a wrapper is inside its decorator, where nothing is wrong; prefer the given location.
    where = (location or _source_location(function)) if not_a_function else (_source_location(function) or location)
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


def default_task_name(function: object) -> str:
    """The name of a task without an explicit one: that of its function. Raises HRS-102 if other code may share it."""
    inner = inspect.unwrap(function) if callable(function) else function
    name = getattr(inner, "__name__", "")
    if not name.isidentifier() or "<locals>" in getattr(inner, "__qualname__", ""):
        raise TaskDefinitionError(
            "a task that is not a function of a module needs a name",
            code=ErrorCode.TASK_INVALID_OPTIONS,
            hint='for example @app.task("emails.send")',
            location=_source_location(inner) if callable(inner) else None,
        )
    return name


def normalize_flags(given: Iterable[str] | Mapping[str, bool]) -> dict[str, bool]:
    """Return flags by name; every flag of a list is set."""
    if isinstance(given, Mapping):
        return dict(cast("Mapping[str, bool]", given))
    return dict.fromkeys(given, True)


def _source_location(function: Callable[..., Any]) -> SourceLocation | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else SourceLocation(code.co_filename, code.co_firstlineno)


# The registry


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCatalog:
    """The tasks of an app as stored in `horsies_task_catalog`; equal catalogs have the same hash."""

    entries_json: str

    @classmethod
    def of(cls, definitions: Iterable[TaskDefinition]) -> TaskCatalog:
        entries: list[JsonValue] = [
            {
                "task_name": definition.name,
                "queue_name": definition.queue_name,
                "priority": definition.options.priority,
                "max_retries": definition.max_retries,
                "options": json.loads(definition.options_json),
                "params_schema": definition.params_schema,
            }
            for definition in sorted(definitions, key=lambda definition: definition.name)
        ]
        return cls(entries_json=canonical_json(entries))

    @property
    def catalog_hash(self) -> str:
        return hashlib.sha256(self.entries_json.encode()).hexdigest()


class HasDefinition(Protocol):
    @property
    def definition(self) -> TaskDefinition: ...


D = TypeVar("D", bound=HasDefinition)


class TaskRegistry(Mapping[str, D], Generic[D]):
    """The tasks of one app by name. A name belongs to one source line, so a module may be imported twice."""

    def __init__(self) -> None:
        self._by_name: dict[str, D] = {}

    def register(self, task: D) -> D:
        """Register a task and return the registered one: an earlier definition from the same line is kept."""
        new = task.definition
        registered = self._by_name.setdefault(new.name, task)
        if registered is not task and registered.definition.location != new.location:
            raise RegistryError(
                f"duplicate task name {new.name!r}",
                code=ErrorCode.TASK_DUPLICATE_NAME,
                notes=[f"first defined at {registered.definition.location}"],
                hint="give every task a unique name",
                location=new.location,
            )
        return registered

    def find(self, name: str) -> D:
        """Return the task; raises HRS-300 if it is not registered."""
        if name not in self._by_name:
            raise RegistryError(
                f"no task named {name!r}",
                code=ErrorCode.TASK_NOT_REGISTERED,
                hint=f"registered tasks: {', '.join(sorted(self._by_name)) or 'none'}",
            )
        return self._by_name[name]

    def __getitem__(self, name: str) -> D:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


# Checks of a definition; each yields the faults it finds


def signature_error(name: str, fault: SignatureFault) -> HorsiesError:
    where = "" if fault.parameter is None else f" parameter {fault.parameter!r}:"
    return TaskDefinitionError(f"task {name!r}:{where} {fault.reason}", code=fault.code, hint=fault.hint)


def unknown_option_faults(names: Iterable[str], known: Iterable[str]) -> Iterator[HorsiesError]:
    elsewhere = {
        "good_until": "set it when sending: task.with_options(good_until=…)",
        "auto_retry_for": "set it in the retry policy: retry_policy=RetryPolicy(auto_retry_for=[…])",
    }
    for name in names:
        hint = elsewhere.get(name, f"valid options: {', '.join(known)}")
        yield TaskDefinitionError(f"unknown option {name!r}", code=ErrorCode.TASK_INVALID_OPTIONS, hint=hint)


def name_faults(name: object) -> Iterator[HorsiesError]:
    if not is_storable_text(name) or len(name) > MAX_NAME_LENGTH:
        text = f"task_name must be a string of 1 to {MAX_NAME_LENGTH} characters"
        yield _options_error(text, hint='for example @app.task("emails.send")')


def function_faults(function: object) -> Iterator[HorsiesError]:
    inner = inspect.unwrap(function) if callable(function) else function
    if not inspect.isfunction(inner):
        yield _function_error(
            f"a task must be a plain function, got {_describe(inner)}",
            hint="put @app.task above a def or async def at module level",
        )
    elif _is_undeclared_wrapper(inner):
        yield _function_error(
            f"a task must be a plain function, got the wrapper {inner.__name__} of another decorator",
            hint="put @app.task above the other decorators, and use functools.wraps in them",
        )
    elif inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        yield _function_error(
            f"{inner.__name__} is a generator, but a task returns a single result", hint="return a list instead"
        )
    elif owner := _enclosing_class(inner):
        yield _function_error(
            f"{inner.__name__} is a method of {owner}, but a worker has no {owner} instance to call it on",
            hint="define the task outside the class, and pass what it needs as arguments",
        )


def option_faults(options: TaskOptions, queues: Mapping[str, int] | None) -> Iterator[HorsiesError]:
    if fault := queue_fault(options.queue_name, queues):
        yield fault
    if options.priority is not None and not is_priority(options.priority):
        text = "priority must be a whole number from 1 (first) to 100 (last)"
        yield _options_error(text, hint="for example priority=10")
    if options.retry_policy is not None and not isinstance(options.retry_policy, RetryPolicy):
        hint = 'for example retry_policy=RetryPolicy.fixed([10, 60], auto_retry_for=["UPSTREAM_DOWN"])'
        yield _options_error("retry_policy must be a RetryPolicy", hint=hint)
    timeout = options.timeout_ms
    if timeout is not None and (not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < MIN_TIMEOUT_MS):
        text = f"timeout_ms must be a whole number of milliseconds, at least {MIN_TIMEOUT_MS}"
        yield _options_error(text, hint="for example timeout_ms=30_000 for 30 seconds")
    yield from flag_faults(options.flags)
    rules = ExceptionRules(mapper=options.exception_mapper or {}, default=options.default_unhandled_error_code)
    yield from mapping_faults(rules)


def flag_faults(flags: object) -> Iterator[HorsiesError]:
    is_collection = isinstance(flags, (list, tuple, set, frozenset, dict))
    names = list(cast("Iterable[object]", flags)) if is_collection else [None]
    values = list(cast("dict[object, object]", flags).values()) if isinstance(flags, dict) else []
    if not (all(map(is_storable_text, names)) and all(isinstance(value, bool) for value in values)):
        text = "flags must be a list of names or a dict of name → bool"
        yield _options_error(text, hint='for example flags=["infrastructure_resilient"]')


def _is_undeclared_wrapper(function: FunctionType) -> bool:
    """Whether this looks like a decorator's wrapper without `functools.wraps`.

    It has no annotations, takes `(*args, **kwargs)` only, and has a callable in its closure.
    """
    if function.__annotations__ or function.__closure__ is None:
        return False
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    takes_anything = kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    return takes_anything and any(callable(cell.cell_contents) for cell in function.__closure__)


def _enclosing_class(function: FunctionType) -> str | None:
    """Return the class in which a method is defined; None for a plain function."""
    outer, _, _ = function.__qualname__.rpartition(".")
    is_method = next(iter(inspect.signature(function).parameters), None) in ("self", "cls")
    return outer.rpartition(".")[2] if is_method and outer and not outer.endswith("<locals>") else None


def is_storable_text(value: object) -> TypeGuard[str]:
    """Whether the value is a non-empty string that PostgreSQL can store."""
    return isinstance(value, str) and value != "" and find_json_fault(str(value)) is None


def _describe(value: object) -> str:
    match value:
        case type():
            return f"the class {value.__qualname__}"
        case MethodType():
            return f"a bound method of {type(value.__self__).__qualname__}"
        case BuiltinFunctionType():
            return f"the built-in {value.__name__}"
        case _:
            return f"an object of class {type(value).__qualname__}"


def _function_error(text: str, *, hint: str) -> HorsiesError:
    return TaskDefinitionError(text, code=ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED, hint=hint)


def _options_error(text: str, *, hint: str) -> HorsiesError:
    return TaskDefinitionError(text, code=ErrorCode.TASK_INVALID_OPTIONS, hint=hint)
