"""Builds the payloads of sends: options, validation, fingerprints and retries of failed sends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from hashlib import sha256
from math import inf
from typing import Any, TypeAlias, cast

from uuid_utils import uuid7

from horsies.codec.arguments import CallSignature, EncodedArguments
from horsies.codec.canonical_json import canonical_json
from horsies.model.send import BulkPayload, TaskSendError, TaskSendErrorCode, TaskSendPayload
from horsies.model.settings import AppConfig
from horsies.model.task import check_good_until, effective_priority, is_priority
from horsies.registry import TaskDefinition
from horsies.registry.definition import flag_faults, is_storable_text, normalize_flags

MAX_KEY_BYTES = 255
MAX_UTF8_BYTES = 4
"""The longest UTF-8 form of a character."""
MAX_DELAY_S = 1000 * 365 * 86400
"""A thousand years: keeps `now + delay` within the range of timestamptz."""

# Task names already warned about, shared by all apps of the process.
_WARNED_TASKS: set[str] = set()

logger = logging.getLogger("horsies.send")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """Options of one send, as given to `with_options`."""

    good_until: datetime | None = None
    delay: float | timedelta | None = None
    idempotency_key: str | None = None
    flags: Iterable[str] | Mapping[str, bool] | None = None
    priority: int | None = None
    connection: object | None = None


DEFAULT_OPTIONS = SendOptions()


@dataclass(frozen=True, slots=True)
class BoundCall:
    """Arguments of one call, for `send_many`."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


SendItem: TypeAlias = BoundCall | Mapping[str, Any] | tuple[Any, ...]
"""One task of a `send_many`: the value of `bind`, keyword arguments, or positional arguments."""


class SendRejected(Exception):
    """A call cannot be sent: an argument, an option or the use of a retry method is invalid."""

    def __init__(self, message: str, *, code: TaskSendErrorCode = TaskSendErrorCode.VALIDATION_FAILED) -> None:
        super().__init__(message)
        self.code = code


class PayloadBuilder:
    """Validates and encodes the calls of one task, without using the database."""

    def __init__(self, task: TaskDefinition, config: AppConfig) -> None:
        self._task = task
        self._limits = config.payload
        limits = (config.payload.warn_bytes, config.payload.reject_bytes)
        self._lowest_limit = min((limit for limit in limits if limit is not None), default=inf)
        self._queue_priority = next((q.priority for q in config.custom_queues or () if q.name == task.queue_name), None)
        self._task_options = task.options_json
        self._default_template = self._make_template(DEFAULT_OPTIONS)

    def build(self, options: SendOptions, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskSendPayload:
        """Build the payload of one call; raises SendRejected if it is invalid."""
        template, arguments = self._template(options), self._encode(args, kwargs)
        return template.build(str(uuid7()), arguments, datetime.now(UTC))

    def build_many(self, options: SendOptions, items: Iterable[object]) -> BulkPayload | None:
        """Build the payloads of a bulk send, None if there are no items; SendRejected names the first invalid item.

        Each item is encoded before the next one is requested, so an iterator may reuse one mutable row.
        """
        if options.idempotency_key is not None:
            raise SendRejected("send_many does not support idempotency_key")
        try:
            iterator = iter(items)
        except TypeError as error:
            raise SendRejected(str(error)) from error
        template, calls = self._template(options), list[EncodedArguments]()
        for index, item in enumerate(iterator):
            try:
                calls.append(self._encode(*call_arguments(item)))
            except SendRejected as rejected:
                raise SendRejected(f"item {index}: {rejected}", code=rejected.code) from rejected.__cause__
        return template.build_many([str(uuid7()) for _ in calls], calls, datetime.now(UTC)) if calls else None

    def _encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedArguments:
        try:
            encoded = self._task.codec.encode(args, kwargs)
        except ValueError as error:
            raise SendRejected(str(error)) from error
        if MAX_UTF8_BYTES * (len(encoded.args_json) + len(encoded.kwargs_json)) > self._lowest_limit:
            self._check_size(encoded)
        return encoded

    def _check_size(self, encoded: EncodedArguments) -> None:
        size, warn, reject = encoded.size_bytes, self._limits.warn_bytes, self._limits.reject_bytes
        if reject is not None and size > reject:
            text = f"arguments of {size} bytes exceed payload_reject_bytes ({reject})"
            raise SendRejected(text, code=TaskSendErrorCode.PAYLOAD_TOO_LARGE)
        if warn is not None and size > warn and self._task.name not in _WARNED_TASKS:
            _WARNED_TASKS.add(self._task.name)
            logger.warning("large arguments, store the data elsewhere  task=%s  bytes=%d", self._task.name, size)

    def _template(self, options: SendOptions) -> SendTemplate:
        return self._default_template if options is DEFAULT_OPTIONS else self._make_template(options)

    def _make_template(self, options: SendOptions) -> SendTemplate:
        try:
            check_options(options)
        except ValueError as error:
            raise SendRejected(str(error)) from error
        task = self._task
        shared = TaskSendPayload(
            task_id="",
            task_name=task.name,
            queue_name=task.queue_name,
            priority=effective_priority(
                sent_with=options.priority, task=task.options.priority, queue=self._queue_priority
            ),
            args="[]",
            kwargs="{}",
            sent_at=datetime.min.replace(tzinfo=UTC),
            good_until=options.good_until,
            enqueue_delay_seconds=delay_seconds(options.delay),
            task_options=self._task_options,
            flags=canonical_json({**task.flags, **normalize_flags(() if options.flags is None else options.flags)}),
            max_retries=task.max_retries,
            idempotency_key=options.idempotency_key,
            command_sha=None,
            enqueue_sha="",
        )
        return SendTemplate(shared, task.codec.signature)


@dataclass(frozen=True)
class SendTemplate:
    """What all sends of one task with the same options have in common.

    `shared` is a payload of which id, arguments, time and fingerprints are replaced for each send.
    """

    shared: TaskSendPayload
    signature: CallSignature

    def build(self, task_id: str, arguments: EncodedArguments, sent_at: datetime) -> TaskSendPayload:
        return self.shared._replace(
            task_id=task_id,
            args=arguments.args_json,
            kwargs=arguments.kwargs_json,
            sent_at=sent_at,
            command_sha=None if self.shared.idempotency_key is None else self._command_sha(arguments),
            enqueue_sha=self._enqueue_sha(format_utc(sent_at), *arguments),
        )

    def build_many(self, task_ids: Sequence[str], calls: Sequence[EncodedArguments], sent_at: datetime) -> BulkPayload:
        return BulkPayload(
            first=self.build(task_ids[0], calls[0], sent_at),
            task_ids=task_ids,
            args=[call.args_json for call in calls],
            kwargs=[call.kwargs_json for call in calls],
            enqueue_sha=partial(self._enqueue_sha, format_utc(sent_at)),
        )

    def _enqueue_sha(self, sent_at: str, args: str, kwargs: str) -> str:
        """Equal for an unchanged resend; compared only with the task stored under the same id."""
        before_kwargs, after_kwargs = self._shared_json
        document = f'{{"args":{args}{before_kwargs}{kwargs}{after_kwargs}"{sent_at}"}}'
        return sha256(document.encode()).hexdigest()

    def _command_sha(self, arguments: EncodedArguments) -> str:
        """Equal for all sends of the task with these arguments, whether they are given by position or by keyword.

        Raises ValueError if the arguments are not valid JSON.
        """
        args, kwargs = self.signature.prefer_keywords(arguments.args, arguments.kwargs)
        document = canonical_json({"args": args, "kwargs": kwargs, "name": self.shared.task_name})
        return sha256(document.encode()).hexdigest()

    @cached_property
    def _shared_json(self) -> tuple[str, str]:
        """The parts of the fingerprinted document before and after `kwargs` that are the same for all sends.

        The document is canonical JSON: its values are, and they are joined in the order of their keys.
        """
        shared = self.shared
        delay = "null" if shared.enqueue_delay_seconds is None else repr(shared.enqueue_delay_seconds)
        good_until = "null" if shared.good_until is None else f'"{format_utc(shared.good_until)}"'
        options = (
            f'{{"flags":{shared.flags},"idempotency_key":{canonical_json(shared.idempotency_key)},'
            f'"max_retries":{shared.max_retries},"task":{shared.task_options}}}'
        )
        before_kwargs = f',"delay":{delay},"good_until":{good_until},"kwargs":'
        after_kwargs = (
            f',"name":{canonical_json(shared.task_name)},"options":{options},"priority":{shared.priority},'
            f'"queue":{canonical_json(shared.queue_name)},"sent_at":'
        )
        return before_kwargs, after_kwargs


def format_utc(at: datetime) -> str:
    """ISO 8601 in UTC."""
    return (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat()


def call_arguments(item: object) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The positional and keyword arguments of one `send_many` item."""
    match item:
        case tuple():
            return cast("tuple[Any, ...]", item), {}
        case BoundCall():
            return item.args, item.kwargs
        case Mapping():
            return (), cast("Mapping[str, Any]", item)
        case _:
            raise SendRejected(f"must be a mapping, a tuple or a bind() value, got {type(item).__qualname__}")


# Validation of options


def check_options(options: SendOptions) -> None:
    """Raise ValueError for an invalid option."""
    if options.good_until is not None:
        check_good_until(options.good_until)
    for fault in () if options.flags is None else flag_faults(options.flags):
        raise ValueError(fault.message)
    if options.priority is not None and not is_priority(options.priority):
        raise ValueError(f"priority must be an integer from 1 to 100, got {options.priority!r}")
    delay_seconds(options.delay)  # called for its validation only
    key = options.idempotency_key
    if key is not None and not (is_storable_text(key) and len(key.encode()) <= MAX_KEY_BYTES):
        raise ValueError(f"idempotency_key must be a string of 1 to {MAX_KEY_BYTES} bytes")
    check_connection(options.connection)


def check_connection(connection: object | None) -> None:
    """Raise ValueError unless it is None or behaves like an asyncpg connection."""
    # Duck typing: connections wrapped for instrumentation are not instances of the driver's class.
    if connection is None or all(hasattr(connection, name) for name in ("transaction", "is_in_transaction", "fetch")):
        return
    advice = "; acquire a connection from the pool and pass that" if hasattr(connection, "acquire") else ""
    raise ValueError(f"connection must be an asyncpg connection, got {type(connection).__qualname__}{advice}")


def delay_seconds(delay: float | timedelta | None) -> float | None:
    """A delay in seconds; raises ValueError if it is negative, too long or not a number."""
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_DELAY_S:
        raise ValueError(
            f"delay must be a timedelta or seconds, at least 0 and less than a thousand years, got {delay!r}"
        )
    return float(seconds)


def with_delay(options: SendOptions, delay: float | timedelta) -> SendOptions:
    """The options of a `schedule` call; raises SendRejected if the delay is missing or given twice."""
    if cast("object", delay) is None:
        raise SendRejected("schedule needs a delay: seconds or a timedelta")
    if options.delay is not None:
        raise SendRejected("delay is given twice: in with_options and in schedule")
    return replace(options, delay=delay)


# Retrying failed sends

RETRYABLE_CODES = frozenset({TaskSendErrorCode.ENQUEUE_FAILED, TaskSendErrorCode.ASYNC_CONTEXT})
RESEND_ALL_HINT = "nothing was stored, call send_many again"


def payload_to_resend(
    error: TaskSendError, task: TaskDefinition, *, delayed: bool, connection: object | None
) -> TaskSendPayload:
    """Return the payload of a failed send; raises SendRejected if `retry_send` must not send it again.

    `delayed` is True for `retry_schedule`.
    """
    if not isinstance(cast("object", error), TaskSendError):
        raise SendRejected(f"expected a TaskSendError, got {type(error).__qualname__}")
    payload = error.payload
    if payload is None and error.code is TaskSendErrorCode.ENQUEUE_FAILED:
        advice = RESEND_ALL_HINT if error.task_id is None else lookup_hint(error.task_id)
        raise SendRejected(f"retry_send does not accept errors of send_many; {advice}")
    if payload is None or error.code not in RETRYABLE_CODES:
        raise SendRejected(f"a send that failed with {error.code} cannot be retried")
    if payload.task_name != task.name:
        raise SendRejected(f"the error belongs to task {payload.task_name!r}, not to {task.name!r}")
    if (payload.enqueue_delay_seconds is not None) is not delayed:
        raise SendRejected("use retry_schedule for a delayed send and retry_send for any other")
    if error.needs_connection and connection is None:
        raise SendRejected(f"the send used connection=; use with_options(connection=…).{retry_method_name(payload)}")
    try:
        check_connection(connection)
        return refingerprint(payload, task.codec.signature)
    except ValueError as invalid:
        raise SendRejected(str(invalid)) from invalid


def retry_method_name(payload: TaskSendPayload) -> str:
    return "retry_send_async" if payload.enqueue_delay_seconds is None else "retry_schedule_async"


def lookup_hint(first_task_id: str) -> str:
    """Return how to find out whether a bulk send was stored, which is all or nothing."""
    return f"check whether task {first_task_id}, the first of them, exists"


def refingerprint(payload: TaskSendPayload, signature: CallSignature) -> TaskSendPayload:
    """Recompute the fingerprints, so that a payload that the caller changed does not match the one stored first.

    Raises ValueError if its arguments are not valid JSON.
    """
    arguments = EncodedArguments(payload.args, payload.kwargs)
    return SendTemplate(payload, signature).build(payload.task_id, arguments, payload.sent_at)
