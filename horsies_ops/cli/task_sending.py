"""Sending a task by its name: checked by the app that defines it, or stored as given where no app is at hand."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from horsies import Horsies
from horsies.client.task_function import TaskFunction
from horsies.codec.result import stored_result
from horsies.codec.wire import parsed
from horsies.errors import ErrorCode, HorsiesError, UsageError
from horsies.model.result import Err
from horsies_ops.actions.sending import as_given
from horsies_ops.cli.application import load_app, settings_for_app
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from horsies.client.handle import TaskHandle
    from horsies.client.sending import SendOptions
    from horsies.errors import BrokerErrorCode
    from horsies.model.settings import AppConfig
    from horsies_ops.cli.session import GlobalOptions


@contextmanager
def task_to_send(
    options: GlobalOptions, name: str, *, locator: str | None, queue: str | None
) -> Generator[TaskFunction[..., Any]]:
    """Yield the task of that name, bound for `queue` where one is given; HRS-300, 200 or 103 where it cannot be."""
    is_app_named = locator is not None or settings_for_app(options).locator is not None
    if not is_app_named:
        options.talk("no app is named or configured: name, arguments and queue are stored unchecked")
    with redirect_stdout(sys.stderr):  # what a module prints while it is imported is not our data
        app = load_app(options, locator) if is_app_named else Horsies()
    try:
        yield _registered(app, name, queue) if is_app_named else _unregistered(app, name, queue)
    finally:
        app.close()


def send(
    task: TaskFunction[..., Any], options: SendOptions, args: list[Any], kwargs: dict[str, Any]
) -> TaskHandle[Any]:
    """Send the task, or raise why it could not be."""
    sent = task.send_with(options, tuple(args), kwargs)
    if not isinstance(sent, Err):
        return sent.value
    error = sent.error
    if isinstance(error.exception, HorsiesError):
        raise error.exception  # what the database said has its own exit code and hint
    code = cast("BrokerErrorCode", error.code)  # a code of the send, shown as such
    raise HorsiesError(error.message, code=code, hint=_known_names(task, kwargs))


def _known_names(task: TaskFunction[..., Any], kwargs: Mapping[str, Any]) -> str | None:
    """What may be named, where something else was."""
    shape = task.definition.codec.shape
    if shape.extra is not None or kwargs.keys() <= shape.keywords:
        return None
    return f"its parameters: {', '.join(sorted(shape.keywords)) or 'none'}"


def result_document(task: TaskFunction[..., Any], handle: TaskHandle[Any], timeout: timedelta) -> dict[str, Any]:
    """Wait for the result, `{"ok": …}` or `{"err": …}`; WAIT_TIMEOUT is an err as well, and the task goes on."""
    result = handle.get(timeout_ms=int(timeout / timedelta(milliseconds=1)))
    return cast("dict[str, Any]", parsed(stored_result(result, task.definition.codec.ok).document))


async def has_live_worker(config: AppConfig) -> bool:
    """Whether anyone is there who could run the task."""
    threshold = timedelta(milliseconds=config.recovery.worker_stale_threshold_ms)
    async with open_ops(config.broker, read_only=True) as ops:
        return await ops.live_workers(threshold=threshold) > 0


def _registered(app: Horsies, name: str, queue: str | None) -> TaskFunction[..., Any]:
    task = app.tasks.find(name)
    if queue is None:
        return task
    return TaskFunction(app, replace(task.definition, queue_name=app.validate_queue_name(queue)))


def _unregistered(app: Horsies, name: str, queue: str | None) -> TaskFunction[..., Any]:
    return TaskFunction(app, as_given(name, app.validate_queue_name(None) if queue is None else queue))


def json_array(text: str) -> list[Any]:
    return _of_type(list, "--args", "an array", text)


def json_object(text: str) -> dict[str, Any]:
    return _of_type(dict, "--kwargs", "an object", text)


def _of_type(kind: type[Any], option: str, described: str, text: str) -> Any:
    try:
        value = parsed(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise _bad_json(f"{option} is no JSON at {place}: {error.msg}", option) from None
    except ValueError as error:
        raise _bad_json(f"{option} is no JSON: {error}", option) from None
    if not isinstance(value, kind):
        meant = _OPTIONS.get(type(value))
        error = _bad_json(f"{option} must be {described} in JSON", meant or option)
        if meant:
            error.help_text = f"did you mean {meant}? {error.help_text}"
        raise error
    return value


_OPTIONS: Mapping[type[object], str] = {list: "--args", dict: "--kwargs"}


def _bad_json(message: str, option: str) -> UsageError:
    example = """'[1, "two"]'""" if option == "--args" else """'{"name": "value"}'"""
    return UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=f"for example {option} {example}")
