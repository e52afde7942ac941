from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from horsies import AppConfig, ErrorCode, Horsies, RegistryError, RetryPolicy, TaskError, TaskResult


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig())


def one(n: int) -> TaskResult[int, TaskError]:
    """Return the number."""
    return TaskResult(ok=n)


def other(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=-n)


def test_registered_task_is_found_by_name(app: Horsies) -> None:
    task = app.task("b")(one)
    app.task("a")(other)
    assert app.list_tasks() == ["a", "b"]
    assert app.tasks["b"] is task
    assert (task.__name__, task.__doc__) == ("one", "Return the number.")


def test_same_line_may_register_again(app: Horsies) -> None:
    first = app.task("a")(one)
    assert app.task("a", priority=5)(one) is first
    assert first.task_options.priority is None


def test_duplicate_name_from_another_line_raises(app: Horsies) -> None:
    app.task("a")(one)
    with pytest.raises(RegistryError) as caught:
        app.task("a")(other)
    assert caught.value.code is ErrorCode.TASK_DUPLICATE_NAME
    assert caught.value.location is not None
    assert caught.value.location.line == other.__code__.co_firstlineno
    assert f"{__file__}:{one.__code__.co_firstlineno}" in str(caught.value)


def test_two_apps_may_use_one_name(app: Horsies) -> None:
    app.task("a")(one)
    assert Horsies(AppConfig()).task("a")(other)(1).ok_value == -1


MODULE = """
from horsies import AppConfig, Horsies, TaskError, TaskResult
import holder
@holder.app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)
"""


def test_reimported_module_keeps_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: Horsies) -> None:
    (tmp_path / "holder.py").write_text("app = None\n")
    (tmp_path / "reloaded_tasks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    vars(importlib.import_module("holder"))["app"] = app
    module = importlib.import_module("reloaded_tasks")
    first = module.add
    assert importlib.reload(module).add is first


def test_script_that_is_also_imported_registers_tasks_once(tmp_path: Path) -> None:
    (tmp_path / "holder.py").write_text("from horsies import AppConfig, Horsies\napp = Horsies(AppConfig())\n")
    (tmp_path / "script.py").write_text(MODULE + "import script\nprint(add is script.add)\n")
    result = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, timeout=30
    )
    assert (result.stdout.splitlines()[-1:], result.stderr) == (["True"], "")


def test_flags_are_a_list_or_a_dict(app: Horsies) -> None:
    assert app.task("a", flags=["x", "y"])(one).definition.flags == {"x": True, "y": True}
    assert app.task("b", flags={"x": False})(one).definition.flags == {"x": False}


def test_stored_options_are_policy_and_timeout(app: Horsies) -> None:
    policy = RetryPolicy.fixed([1, 2], auto_retry_for=["BUSY"])
    task = app.task("a", retry_policy=policy, timeout_ms=5000)(one)
    assert task.definition.max_retries == 2
    assert '"timeout_ms":5000' in task.definition.options_json
    assert '"auto_retry_for":["BUSY"]' in task.definition.options_json
    assert app.task("b")(one).definition.options_json == "{}"


def test_declared_ok_type_is_known(app: Horsies) -> None:
    assert app.task("a")(one).task_ok_type is int


def add_thousand(function: Callable[[int], TaskResult[int, TaskError]]) -> Callable[[int], TaskResult[int, TaskError]]:
    @functools.wraps(function)
    def inner(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=function(n).ok_value + 1000)

    return inner


def test_wrapped_function_keeps_signature_and_wrapper(app: Horsies) -> None:
    task = app.task("a")(add_thousand(one))
    assert task.task_ok_type is int
    assert task(5).ok_value == 1005
    with pytest.raises(ValueError, match="'n'"):
        task.bind("no number")  # pyright: ignore[reportArgumentType]


def make_async(
    function: Callable[[int], TaskResult[int, TaskError]],
) -> Callable[[int], Coroutine[Any, Any, TaskResult[int, TaskError]]]:
    @functools.wraps(function)
    async def inner(n: int) -> TaskResult[int, TaskError]:
        return function(n)

    return inner


async def test_async_wrapper_makes_an_async_task(app: Horsies) -> None:
    task = app.task("a")(make_async(one))
    assert task.definition.is_async
    assert (await task(5)).ok_value == 5


async def test_async_function_is_a_task(app: Horsies) -> None:
    @app.task("a")
    async def later(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    assert (await later(3)).ok_value == 3


def test_every_kind_of_parameter_is_supported(app: Horsies) -> None:
    @app.task("a")
    def total(first: int, /, *more: int, factor: int = 1, **named: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=factor * (first + sum(more) + sum(named.values())))

    assert total(1, 2, 3, factor=10, extra=4).ok_value == 100
    assert total.bind(1, 2, 3, factor=10, extra=4)
    with pytest.raises(ValueError, match="more"):
        total.bind(1, "two")  # pyright: ignore[reportArgumentType]
