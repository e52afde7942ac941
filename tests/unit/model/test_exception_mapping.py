from __future__ import annotations

from typing import Any

import pytest

from horsies.errors import ErrorCode
from horsies.model.task_result import (
    ExceptionRules,
    OperationalErrorCode,
    OutcomeCode,
    error_code_for,
    mapping_faults,
    reserved_code_faults,
    task_error_from,
)

NO_RULES = ExceptionRules()
APP = ExceptionRules(mapper={KeyError: "APP_KEY", ValueError: "APP_VALUE"}, default="APP_DEFAULT")
TASK = ExceptionRules(mapper={KeyError: "TASK_KEY"}, default="TASK_DEFAULT")


class Subclass(KeyError):
    pass


@pytest.mark.parametrize(
    ("kind", "task", "app", "code"),
    [
        (KeyError, TASK, APP, "TASK_KEY"),
        (ValueError, TASK, APP, "APP_VALUE"),
        (Subclass, TASK, APP, "TASK_DEFAULT"),
        (OSError, NO_RULES, APP, "APP_DEFAULT"),
        (OSError, NO_RULES, NO_RULES, "UNHANDLED_EXCEPTION"),
        (SystemExit, ExceptionRules(mapper={SystemExit: "LEFT"}), APP, "LEFT"),
    ],
)
def test_mappers_come_before_defaults_and_task_before_app(
    kind: type[BaseException], task: ExceptionRules, app: ExceptionRules, code: str
) -> None:
    assert error_code_for(kind, task=task, app=app) == code


def test_built_in_default_is_an_enum_member() -> None:
    app = ExceptionRules(default="UNHANDLED_EXCEPTION")

    assert error_code_for(OSError, task=NO_RULES, app=app) is OperationalErrorCode.UNHANDLED_EXCEPTION


def test_task_error_keeps_the_exception_and_names_its_class() -> None:
    exception = KeyError("sku")

    error = task_error_from(exception, task=TASK, app=APP)

    assert (error.error_code, error.message, error.exception) == ("TASK_KEY", "KeyError: 'sku'", exception)


def test_exception_without_message_uses_its_class_name() -> None:
    assert task_error_from(SystemExit(), task=NO_RULES, app=NO_RULES).message == "SystemExit"


@pytest.mark.parametrize(
    "wrong",
    [
        ExceptionRules(mapper={KeyError: "keyError"}),
        ExceptionRules(mapper={KeyError: 5}),  # pyright: ignore[reportArgumentType]
        ExceptionRules(mapper={"KeyError": "KEY"}),  # pyright: ignore[reportArgumentType]
        ExceptionRules(mapper={int: "KEY"}),  # pyright: ignore[reportArgumentType]
        ExceptionRules(default="oops"),
    ],
)
def test_invalid_rules_are_a_configuration_error(wrong: ExceptionRules) -> None:
    (fault,) = mapping_faults(wrong)

    assert fault.code is ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER


def test_every_fault_is_reported() -> None:
    mapper: Any = {KeyError: "keyError", int: "KEY"}

    assert len(list(mapping_faults(ExceptionRules(mapper=mapper, default="x")))) == 3
    assert not list(mapping_faults(APP))


def test_built_in_codes_are_reserved_except_the_default() -> None:
    rules = ExceptionRules(mapper={KeyError: "TASK_TIMEOUT"}, default=OutcomeCode.TASK_EXPIRED)

    assert {fault.code for fault in reserved_code_faults(rules)} == {ErrorCode.CHECK_RESERVED_CODE_COLLISION}
    assert len(list(reserved_code_faults(rules))) == 2
    assert not list(reserved_code_faults(ExceptionRules(default="UNHANDLED_EXCEPTION")))
    assert not list(reserved_code_faults(NO_RULES))
