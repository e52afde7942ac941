"""`horsies task send`: find the task, parse its JSON arguments, send it and wait for the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from horsies import Horsies
from horsies.client.task import TaskFunction, TaskHandle
from horsies.codec.canonical_json import parse_json
from horsies.codec.results import encode_result
from horsies.errors import BrokerErrorCode, ErrorCode, HorsiesError, NotFound, RegistryError, UsageError
from horsies.model.result import Err
from horsies_ops.actions.queues import unregistered_definition
from horsies_ops.cli.options import GlobalOptions, load_and_export_settings, load_app, run_on_database
from horsies_ops.cli.output import print_warning


@contextmanager
def task_to_send(
    options: GlobalOptions, name: str, *, locator: str | None, queue: str | None
) -> Generator[TaskFunction[..., Any]]:
    """Yield the app's task of this name or, without an app, a task that is not validated.

    Raises NotFound for an unknown task and HRS-200 or HRS-103 for an unknown queue.
    """
    has_app = locator is not None or load_and_export_settings(options).locator is not None
    if not has_app:
        options.print_message("no app given or configured: name, arguments and queue are stored without validation")
    with redirect_stdout(sys.stderr):  # what user modules print on import must not mix with our data
        app = load_app(options, locator) if has_app else Horsies()  # an app without tasks has the settings to send with
    try:
        if not has_app:
            queue_name = app.validate_queue_name(None) if queue is None else queue
            yield TaskFunction(app, unregistered_definition(name, queue_name))
        elif queue is None:
            yield _find_task(app, name)
        else:
            definition = _find_task(app, name).definition
            yield TaskFunction(app, replace(definition, queue_name=app.validate_queue_name(queue)))
    finally:
        app.close()


def _find_task(app: Horsies, name: str) -> TaskFunction[..., Any]:
    try:
        return app.tasks.find(name)
    except RegistryError as error:
        raise NotFound(error.message, code=error.code, hint=error.help_text) from None


def send_or_raise(
    task: TaskFunction[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    priority: int | None,
    delay: timedelta | None,
    idempotency_key: str | None,
) -> TaskHandle[Any]:
    """Send the task; raises the error of a failed send."""
    options = task.with_options(priority=priority, delay=delay, idempotency_key=idempotency_key)
    sent = options.send(*args, **kwargs)
    if not isinstance(sent, Err):
        return sent.value
    error = sent.error
    if isinstance(error.exception, HorsiesError):
        raise error.exception  # it has an exit code and hint of its own
    code = cast("BrokerErrorCode", error.code)  # a TaskSendErrorCode, which is only printed
    raise HorsiesError(error.message, code=code, hint=_parameter_hint(task, kwargs))


def _parameter_hint(task: TaskFunction[..., Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the task's parameters if an unknown one was given."""
    signature = task.definition.codec.signature
    if signature.var_keyword is not None or kwargs.keys() <= signature.keywords:
        return None
    return f"its parameters: {', '.join(sorted(signature.keywords)) or 'none'}"


def wait_for_document(
    options: GlobalOptions, task: TaskFunction[..., Any], handle: TaskHandle[Any], timeout: timedelta
) -> dict[str, Any]:
    """Wait for the result and return `{"ok": …}` or `{"err": …}`; a timeout is an err with WAIT_TIMEOUT."""
    options.print_message(f"sent {handle.task_id}, waiting for its result")
    maintenance = run_on_database(task.app.config, lambda ops: ops.maintenance_status(), read_only=True)
    if not options.quiet and not maintenance.has_live_worker:
        print_warning("no live worker on this database", hint="start one: horsies worker")
    result = handle.get(timeout_ms=int(timeout / timedelta(milliseconds=1)))
    return cast("dict[str, Any]", parse_json(encode_result(result, task.definition.codec.result_codec).document))


_JSON_TYPES: Mapping[str, tuple[type[Any], str, str]] = {
    "--args": (list, "an array", """'[1, "two"]'"""),
    "--kwargs": (dict, "an object", """'{"name": "value"}'"""),
}


def parse_arguments(
    values: Sequence[str], args: str, kwarg: Sequence[str], kwargs: str
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments, given one by one or as JSON; raises UsageError."""
    positional, keywords = _parse_json_option("--args", args), _parse_json_option("--kwargs", kwargs)
    if values and positional:
        raise UsageError("positional arguments given twice: use values or --args", code=ErrorCode.CLI_INVALID_ARGS)
    for text in kwarg:
        name, separator, value = text.partition("=")
        if not (separator and name.isidentifier()):
            raise UsageError(
                f"invalid --kwarg {text!r}", code=ErrorCode.CLI_INVALID_ARGS, hint="for example --kwarg lang=de"
            )
        if name in keywords:
            raise UsageError(f"argument {name} given twice", code=ErrorCode.CLI_INVALID_ARGS)
        keywords[name] = _json_or_text(value)
    return positional or [_json_or_text(value) for value in values], keywords


def _json_or_text(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def _parse_json_option(option: str, text: str) -> Any:
    kind, kind_text, _ = _JSON_TYPES[option]
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise _json_error(f"{option} is not valid JSON ({position}): {error.msg}", option) from None
    except ValueError as error:
        raise _json_error(f"{option} is not valid JSON: {error}", option) from None
    if not isinstance(value, kind):
        # An object given to --args belongs to --kwargs, and the other way round.
        other = next((name for name, (type_, *_) in _JSON_TYPES.items() if isinstance(value, type_)), None)
        error = _json_error(f"{option} must be {kind_text} in JSON", other or option)
        if other:
            error.help_text = f"did you mean {other}? {error.help_text}"
        raise error
    return value


def _json_error(message: str, option: str) -> UsageError:
    hint = f"for example {option} {_JSON_TYPES[option][2]}"
    return UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
