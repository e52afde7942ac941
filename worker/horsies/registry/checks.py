"""What can be wrong with the definition of a task, each check yielding the faults it finds."""

from __future__ import annotations

import inspect
from types import BuiltinFunctionType, MethodType
from typing import TYPE_CHECKING, TypeGuard, cast

from horsies.codec.wire import fault_in
from horsies.errors import ErrorCode, HorsiesError, TaskDefinitionError
from horsies.model.mapping import ExceptionRules, mapping_faults
from horsies.model.queues import is_priority, queue_fault
from horsies.model.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FunctionType

    from horsies.codec.annotations import SignatureFault
    from horsies.registry.definition import TaskOptions

LONGEST_NAME = 255
SHORTEST_TIMEOUT_MS = 1000


def signature_error(name: str, fault: SignatureFault) -> HorsiesError:
    where = "" if fault.parameter is None else f" parameter {fault.parameter!r}:"
    return TaskDefinitionError(f"task {name!r}:{where} {fault.reason}", code=fault.code, hint=fault.hint)


def unknown_options(names: Iterable[str], known: Iterable[str]) -> Iterator[HorsiesError]:
    elsewhere = {
        "good_until": "it belongs to a send: task.with_options(good_until=…)",
        "auto_retry_for": "it belongs to the policy: retry_policy=RetryPolicy(auto_retry_for=[…])",
    }
    for name in names:
        hint = elsewhere.get(name, f"the options are {', '.join(known)}")
        yield TaskDefinitionError(f"unknown option {name!r}", code=ErrorCode.TASK_INVALID_OPTIONS, hint=hint)


def name_faults(name: object) -> Iterator[HorsiesError]:
    if not is_stored_text(name) or len(name) > LONGEST_NAME:
        text = f"task_name must be text of 1 to {LONGEST_NAME} characters"
        yield _invalid(text, hint='@app.task("emails.send")')


def function_faults(function: object) -> Iterator[HorsiesError]:
    inner = inspect.unwrap(function) if callable(function) else function
    if not inspect.isfunction(inner):
        yield _no_task(
            f"a task must be a plain function, got {_described(inner)}",
            hint="put @app.task above a def or an async def, outside of any class",
        )
    elif _hides_another(inner):
        yield _no_task(
            f"a task must be a plain function, got a decorator's own function {inner.__name__}, which hides another",
            hint="put @app.task outermost, and give other decorators functools.wraps",
        )
    elif inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        yield _no_task(f"{inner.__name__} is a generator, and a task returns one result", hint="return a list instead")
    elif owner := _owner(inner):
        yield _no_task(
            f"{inner.__name__} is a method of {owner}, and a worker has no {owner} to call it on",
            hint="define the task outside the class, and give it what it needs as arguments",
        )


def option_faults(options: TaskOptions, queues: Mapping[str, int] | None) -> Iterator[HorsiesError]:
    if fault := queue_fault(options.queue_name, queues):
        yield fault
    if options.priority is not None and not is_priority(options.priority):
        yield _invalid("priority must be a whole number of 1 to 100, 1 first", hint="priority=10")
    if options.retry_policy is not None and not isinstance(options.retry_policy, RetryPolicy):
        hint = 'retry_policy=RetryPolicy.fixed([10, 60], auto_retry_for=["UPSTREAM_DOWN"])'
        yield _invalid("retry_policy must be a RetryPolicy", hint=hint)
    timeout = options.timeout_ms
    if timeout is not None and (
        not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < SHORTEST_TIMEOUT_MS
    ):
        text = f"timeout_ms must be a whole number of at least {SHORTEST_TIMEOUT_MS}"
        yield _invalid(text, hint="it counts milliseconds: timeout_ms=30_000 is half a minute")
    yield from flag_faults(options.flags)
    rules = ExceptionRules(mapper=options.exception_mapper or {}, default=options.default_unhandled_error_code)
    yield from mapping_faults(rules)


def flag_faults(flags: object) -> Iterator[HorsiesError]:
    if isinstance(flags, str) or not isinstance(flags, (list, tuple, set, frozenset, dict)):
        yield _no_flags()
        return
    names = list(cast("Iterable[object]", flags))
    values = list(cast("dict[object, object]", flags).values()) if isinstance(flags, dict) else []
    if not (all(is_stored_text(name) for name in names) and all(isinstance(value, bool) for value in values)):
        yield _no_flags()


def _hides_another(function: FunctionType) -> bool:
    """Whether this is the inside of a decorator that left no trace of what it wraps: it takes anything, says nothing
    of its types, and keeps a function to pass it on to."""
    if function.__annotations__ or function.__closure__ is None:
        return False
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    takes_anything = kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    return takes_anything and any(callable(cell.cell_contents) for cell in function.__closure__)


def _owner(function: FunctionType) -> str | None:
    """The class whose body a method stands in; None for a function."""
    outer, _, _ = function.__qualname__.rpartition(".")
    is_method = next(iter(inspect.signature(function).parameters), None) in ("self", "cls")
    return outer.rpartition(".")[2] if is_method and outer and not outer.endswith("<locals>") else None


def is_stored_text(value: object) -> TypeGuard[str]:
    """Whether value is text that the database can hold, and not empty."""
    return isinstance(value, str) and value != "" and fault_in(str(value)) is None


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


def _no_flags() -> HorsiesError:
    text = "flags must be a list of names or a dict of name → bool"
    return _invalid(text, hint='flags=["infrastructure_resilient"]')


def _no_task(text: str, *, hint: str) -> HorsiesError:
    return TaskDefinitionError(text, code=ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED, hint=hint)


def _invalid(text: str, *, hint: str) -> HorsiesError:
    return TaskDefinitionError(text, code=ErrorCode.TASK_INVALID_OPTIONS, hint=hint)
