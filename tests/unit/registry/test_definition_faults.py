"""Invalid task definitions and their error codes."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from horsies import (
    AppConfig,
    CustomQueueConfig,
    ErrorCode,
    Horsies,
    HorsiesError,
    MultipleValidationErrors,
    QueueMode,
    RegistryError,
    TaskDefinitionError,
    TaskError,
    TaskFunction,
    TaskResult,
)


def valid_task(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


def define(function: Any = valid_task, /, name: Any = "t", **options: Any) -> TaskFunction[..., Any]:
    task: Any = Horsies(AppConfig()).task(name, **options)
    return task(function)


def faults_of(function: Any = valid_task, /, **options: Any) -> tuple[HorsiesError, ...]:
    """Return every fault of one definition."""
    with pytest.raises(HorsiesError) as caught:
        define(function, **options)
    return caught.value.faults


def codes_of(function: Any = valid_task, /, **options: Any) -> list[ErrorCode | Any]:
    return [fault.code for fault in faults_of(function, **options)]


INVALID_OPTIONS: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"name": ""}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"name": "x" * 256}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"name": "a\0b"}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"name": "a\ud800b"}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"queue_name": "mail"}, ErrorCode.CONFIG_INVALID_QUEUE_MODE),
    ({"priority": 0}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"priority": 101}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"priority": True}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"priority": 1.0}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"retry_policy": {"max_retries": 3}}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"exception_mapper": {ValueError: "not upper"}}, ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER),
    ({"exception_mapper": {"ValueError": "BAD"}}, ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER),
    ({"exception_mapper": [ValueError]}, ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER),
    ({"default_unhandled_error_code": "Oops"}, ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER),
    ({"timeout_ms": 999}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"timeout_ms": 1000.0}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"timeout_ms": True}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"flags": "resilient"}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"flags": [""]}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"flags": [1]}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"flags": {"resilient": "yes"}}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"flags": ["a\0b"]}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"flags": 5}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"good_until": datetime.now(UTC)}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"auto_retry_for": ["BAD"]}, ErrorCode.TASK_INVALID_OPTIONS),
    ({"whatever": 1}, ErrorCode.TASK_INVALID_OPTIONS),
]


@pytest.mark.parametrize(("options", "code"), INVALID_OPTIONS)
def test_invalid_option_raises(options: dict[str, Any], code: ErrorCode) -> None:
    assert codes_of(**options) == [code]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "x" * 255},
        {"priority": 1},
        {"priority": 100},
        {"timeout_ms": 1000},
        {"exception_mapper": {ValueError: "BAD_VALUE"}},
        {"default_unhandled_error_code": "OOPS"},
        {"flags": ()},
    ],
)
def test_limits_of_options_are_accepted(options: dict[str, Any]) -> None:
    assert define(**options).task_name


def test_send_option_gives_a_hint() -> None:
    with pytest.raises(TaskDefinitionError, match="with_options"):
        define(good_until=datetime.now(UTC))


def custom(queue_name: str | None) -> TaskFunction[..., Any]:
    config = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail", priority=7)])
    return Horsies(config).task("t", queue_name=queue_name)(valid_task)


@pytest.mark.parametrize(
    ("queue_name", "code"),
    [(None, ErrorCode.CONFIG_INVALID_QUEUE_MODE), ("post", ErrorCode.TASK_INVALID_QUEUE)],
)
def test_custom_queue_mode_requires_a_known_queue(queue_name: str | None, code: ErrorCode) -> None:
    with pytest.raises(HorsiesError) as caught:
        custom(queue_name)
    assert caught.value.code is code
    assert "mail" in str(caught.value)


def test_queue_of_a_task_is_given_or_default() -> None:
    assert custom("mail").task_queue_name == "mail"
    assert define().task_queue_name == "default"


class Unknown:
    """A class without a pydantic schema."""


def without_annotation():  # pyright: ignore[reportUnknownParameterType]
    return None


def with_optional_result() -> TaskResult[int, TaskError] | None:
    return None


def with_other_error_type() -> TaskResult[int, str]:  # pyright: ignore[reportInvalidTypeArguments, reportUnknownParameterType]
    raise NotImplementedError


def with_unsupported_parameter(one: Unknown) -> TaskResult[int, TaskError]:
    raise NotImplementedError


def with_unsupported_result() -> TaskResult[Unknown, TaskError]:
    raise NotImplementedError


def with_two_unsupported_parameters(one: Unknown, other: Unknown) -> TaskResult[int, TaskError] | None:
    raise NotImplementedError


def with_wrong_default(n: int = "one") -> TaskResult[int, TaskError]:  # pyright: ignore[reportArgumentType]
    raise NotImplementedError


def with_undefined_class(n: Missing) -> TaskResult[int, TaskError]:  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]
    raise NotImplementedError


INVALID_SIGNATURES: list[tuple[Any, list[ErrorCode]]] = [
    (without_annotation, [ErrorCode.TASK_NO_RETURN_TYPE]),
    (with_optional_result, [ErrorCode.TASK_INVALID_RETURN_TYPE]),
    (with_other_error_type, [ErrorCode.TASK_INVALID_RETURN_TYPE]),
    (with_unsupported_parameter, [ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION]),
    (with_unsupported_result, [ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION]),
    (
        with_two_unsupported_parameters,
        [
            ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
            ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
            ErrorCode.TASK_INVALID_RETURN_TYPE,
        ],
    ),
    (with_wrong_default, [ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION]),
    (with_undefined_class, [ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION]),
]


@pytest.mark.parametrize(("function", "codes"), INVALID_SIGNATURES)
def test_invalid_signature_raises(function: Any, codes: list[ErrorCode]) -> None:
    assert codes_of(function) == codes


def wrap_without_functools(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    del inner.__annotations__["args"], inner.__annotations__["kwargs"], inner.__annotations__["return"]
    return inner


class CallableObject:
    def __call__(self, n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)


class Mailer:
    def send(self, n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    @staticmethod
    def count(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)


HIDING: list[tuple[Any, str]] = [
    (CallableObject(), "an object of class CallableObject"),
    (CallableObject, "the class CallableObject"),
    (functools.partial(valid_task, 1), "an object of class partial"),
    (Mailer().send, "a bound method of Mailer"),
    (len, "the built-in len"),
    (wrap_without_functools(valid_task), "of another decorator"),
    (5, "an object of class int"),
]


@pytest.mark.parametrize(("function", "words"), HIDING)
def test_callables_other_than_functions_are_described(function: Any, words: str) -> None:
    (fault,) = faults_of(function)
    assert fault.code is ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED
    assert words in fault.message


def yielding() -> Iterator[TaskResult[int, TaskError]]:
    yield TaskResult(ok=1)


async def yielding_async() -> AsyncIterator[TaskResult[int, TaskError]]:
    yield TaskResult(ok=1)


@pytest.mark.parametrize("function", [yielding, yielding_async])
def test_generator_raises(function: Any) -> None:
    assert codes_of(function) == [ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED]


def test_method_raises_with_its_class() -> None:
    with pytest.raises(TaskDefinitionError, match="send is a method of Mailer") as caught:
        define(Mailer.send)
    assert caught.value.code is ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED


def test_static_function_in_a_class_may_be_a_task() -> None:
    assert define(Mailer.count)(1).ok_value == 1


def test_self_is_an_ordinary_parameter_outside_a_class() -> None:
    def reflect(self: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=self)

    assert define(reflect)(1).ok_value == 1


def test_task_is_named_after_its_function() -> None:
    app = Horsies(AppConfig())
    assert app.task(valid_task).task_name == "valid_task"
    assert Horsies(AppConfig()).task()(valid_task).task_name == "valid_task"
    with pytest.raises(RegistryError, match="duplicate task name 'valid_task'"):
        app.task("valid_task")(Mailer.count)


def test_nested_function_needs_a_name() -> None:
    def nested() -> int:
        return 1

    app = Horsies(AppConfig())
    for decorate in (app.task, app.task()):
        with pytest.raises(TaskDefinitionError, match="needs a name") as caught:
            decorate(nested)
        assert '@app.task("emails.send")' in str(caught.value)
        assert caught.value.code is ErrorCode.TASK_INVALID_OPTIONS
    assert app.task("nested")(nested)() == 1


def test_unknown_option_lists_valid_options() -> None:
    with pytest.raises(TaskDefinitionError, match="valid options: queue_name, priority, retry_policy"):
        define(retries=3)


def test_hint_for_an_unsupported_type_fits_tasks() -> None:
    with pytest.raises(TaskDefinitionError, match="Unknown cannot be stored as JSON") as caught:
        define(with_unsupported_parameter)
    assert "arbitrary_types_allowed" not in str(caught.value)


def test_missing_return_type_is_reported_once() -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        define(without_annotation)
    assert caught.value.message == "task 't': has no return annotation"
    assert "TaskResult" in (caught.value.help_text or "")


def test_all_faults_are_raised_together() -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        define(with_optional_result, name="", queue_name="mail", priority=0, exception_mapper={1: "X"}, extra=1)
    assert isinstance(caught.value, MultipleValidationErrors)
    assert isinstance(caught.value, ValueError)
    assert [error.code for error in caught.value.report.errors] == [
        ErrorCode.TASK_INVALID_OPTIONS,
        ErrorCode.TASK_INVALID_OPTIONS,
        ErrorCode.TASK_INVALID_RETURN_TYPE,
        ErrorCode.CONFIG_INVALID_QUEUE_MODE,
        ErrorCode.TASK_INVALID_OPTIONS,
        ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER,
    ]


def test_fault_names_file_and_line_of_the_function() -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        define(with_optional_result)
    line = with_optional_result.__code__.co_firstlineno
    assert f"--> {__file__}:{line}" in str(caught.value)


@pytest.mark.parametrize("function", [CallableObject(), wrap_without_functools(valid_task)])
def test_fault_of_a_wrapper_names_the_decorator_line(function: Any) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        define(function)
    assert caught.value.location is not None
    assert caught.value.location.source == "task: Any = Horsies(AppConfig()).task(name, **options)"


UNSOUND: list[tuple[Any, dict[str, Any]]] = [
    *((valid_task, options) for options, _ in INVALID_OPTIONS),
    *((function, {}) for function, _ in (*INVALID_SIGNATURES, *HIDING)),
    *((function, {}) for function in (yielding, yielding_async, Mailer.send)),
]


@pytest.mark.parametrize(("function", "options"), UNSOUND)
def test_every_fault_has_a_hint(function: Any, options: dict[str, Any]) -> None:
    for fault in faults_of(function, **options):
        assert fault.help_text
