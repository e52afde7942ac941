"""Builds the payloads of sends: options, validation, bulk sends and retries of failed sends.

Everything that is the same for all sends of a task is computed once, in a `SendTemplate`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, TypeAlias, cast, overload

from uuid_utils import uuid7

from horsies.codec.arguments import CallSignature, EncodedArguments, TaskCodec
from horsies.codec.canonical_json import SHORT_CHARACTERS, canonical_json, encode_short_scalars
from horsies.codec.fingerprint import Fingerprint, command_sha, enqueue_sha, format_utc, format_utc_now
from horsies.model.result import Err, Ok
from horsies.model.send import CompactPayload, TaskSendError, TaskSendErrorCode, TaskSendPayload, TaskSendResult
from horsies.model.settings import AppConfig
from horsies.model.task import check_good_until, effective_priority, is_priority
from horsies.registry import TaskDefinition
from horsies.registry.definition import flag_faults, is_storable_text, normalize_flags
from horsies.store.tasks import InsertBatch

MAX_KEY_BYTES = 255
MAX_DELAY_S = 1000 * 365 * 86400
"""A thousand years: keeps `now + delay` within the range of timestamptz."""
MAX_UTF8_BYTES = 4
"""Most bytes a character takes in UTF-8: text of up to limit / 4 characters is within the limit without encoding it."""
BATCH_ROWS = 1000
BATCH_CHARACTERS = 32_000_000
"""Most characters in one statement; the client and the server each hold several copies of them in memory."""

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


class PayloadBuilder:
    """Validates and encodes the calls of one task, without using the database."""

    def __init__(self, task: TaskDefinition, config: AppConfig) -> None:
        self._task = task
        self._limits = config.payload
        limits = [limit for limit in (config.payload.warn_bytes, config.payload.reject_bytes) if limit is not None]
        self._max_unchecked_characters = min(limits, default=inf) / MAX_UTF8_BYTES
        """Arguments of up to this many characters are below every size limit."""
        self._queue_priority = next((q.priority for q in config.custom_queues or () if q.name == task.queue_name), None)
        self._options_json = task.options_json  # kept, because the property encodes it at every access
        self._default_template = self._template(DEFAULT_OPTIONS)
        self.try_build_compact: Callable[[tuple[Any, ...]], CompactPayload | None] = (
            self._default_template.compact_builder(task.codec)
            if self._max_unchecked_characters >= SHORT_CHARACTERS
            else lambda _: None
        )
        """Fast path of `build`, three times as fast, for positional arguments without options; None for other calls."""

    def build(
        self, options: SendOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> CompactPayload | TaskSendPayload | Err[TaskSendError]:
        """Return the payload of one call, or the reason why it cannot be sent."""
        try:
            template = self._default_template if options is DEFAULT_OPTIONS else self._template(options)
            encoded = self._task.codec.encode(args, kwargs)
        except ValueError as error:
            return Err(validation_error(f"{self._task.name}: {error}", exception=error))
        may_be_large = len(encoded.args_json) + len(encoded.kwargs_json) > self._max_unchecked_characters
        if may_be_large and (too_large := self._size_error(encoded)) is not None:
            return Err(too_large)
        return template.build(str(uuid7()), encoded, datetime.now(UTC))

    def build_many(self, options: SendOptions, items: Iterable[object]) -> TaskSendResult[BulkSend]:
        """Build the payloads of a bulk send; the error names the first invalid item by its index.

        Each item is encoded before the next one is requested, so an iterator may reuse one mutable row.
        """
        if options.idempotency_key is not None:
            return Err(validation_error(f"{self._task.name}: send_many does not support idempotency_key"))
        try:
            template = self._default_template if options is DEFAULT_OPTIONS else self._template(options)
            iterator = iter(items)
        except (ValueError, TypeError) as error:
            return Err(validation_error(f"{self._task.name}: {error}", exception=error))
        arguments: list[EncodedArguments] = []
        encode, max_unchecked = self._task.codec.encode, self._max_unchecked_characters
        for index, item in enumerate(iterator):
            try:
                # Most items are tuples: skip the match statement of `call_arguments` for them.
                encoded = encode(item, {}) if type(item) is tuple else encode(*call_arguments(item))  # pyright: ignore[reportUnknownArgumentType]
            except ValueError as error:
                return Err(validation_error(f"item {index}: {self._task.name}: {error}", exception=error))
            may_be_large = len(encoded.args_json) + len(encoded.kwargs_json) > max_unchecked
            if may_be_large and (too_large := self._size_error(encoded, f"item {index}: ")) is not None:
                return Err(too_large)
            arguments.append(encoded)
        return Ok(
            BulkSend(
                template=template,
                sent_at=datetime.now(UTC),
                ids=[str(uuid7()) for _ in range(len(arguments))],
                arguments=arguments,
            )
        )

    def _size_error(self, encoded: EncodedArguments, prefix: str = "") -> TaskSendError | None:
        """Reject arguments above the limit; warn about large ones, once per task name."""
        warn, reject = self._limits.warn_bytes, self._limits.reject_bytes
        name, size = self._task.name, encoded.size_bytes
        if reject is not None and size > reject:
            text = f"{prefix}{name}: arguments of {size} bytes exceed payload_reject_bytes ({reject})"
            return TaskSendError(code=TaskSendErrorCode.PAYLOAD_TOO_LARGE, message=text)
        if warn is not None and size > warn and name not in _WARNED_TASKS:
            _WARNED_TASKS.add(name)
            logger.warning("large arguments, store the data elsewhere: task=%s bytes=%d", name, size)
        return None

    def _template(self, options: SendOptions) -> SendTemplate:
        """Compute everything that does not depend on the arguments; raises ValueError for an invalid option."""
        check_options(options)
        task, delay = self._task, delay_seconds(options.delay)
        priority = effective_priority(
            sent_with=options.priority, task=task.options.priority, queue=self._queue_priority
        )
        flags = canonical_json({**task.flags, **normalize_flags(() if options.flags is None else options.flags)})
        return SendTemplate(
            task_name=task.name,
            queue_name=task.queue_name,
            priority=priority,
            good_until=options.good_until,
            delay_seconds=delay,
            task_options=self._options_json,
            flags=flags,
            max_retries=task.max_retries,
            idempotency_key=options.idempotency_key,
            fingerprint=Fingerprint.of(
                task_name=task.name,
                queue_name=task.queue_name,
                priority=priority,
                good_until=options.good_until,
                delay_seconds=delay,
                options_json=fingerprint_options(
                    task_options=self._options_json,
                    flags=flags,
                    max_retries=task.max_retries,
                    idempotency_key=options.idempotency_key,
                ),
            ),
            signature=task.codec.signature,
            is_compact=options.idempotency_key is None and options.good_until is None and delay is None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTemplate:
    """The fields shared by all sends of one task with the same options."""

    task_name: str
    queue_name: str
    priority: int
    good_until: datetime | None
    delay_seconds: float | None
    task_options: str
    flags: str
    max_retries: int
    idempotency_key: str | None
    fingerprint: Fingerprint
    signature: CallSignature
    is_compact: bool
    """Whether its sends have no delay, no good_until and no idempotency key."""

    def build(self, task_id: str, encoded: EncodedArguments, sent_at: datetime) -> CompactPayload | TaskSendPayload:
        if not self.is_compact:
            return self.build_payload(task_id, encoded, sent_at)
        sent_at_text = format_utc(sent_at)
        return CompactPayload(
            task_id,
            self.task_name,
            self.queue_name,
            self.priority,
            encoded.args_json,
            encoded.kwargs_json,
            sent_at_text,
            self.max_retries,
            self.task_options,
            self.flags,
            self.fingerprint.sha(encoded, sent_at_text),
        )

    def build_payload(self, task_id: str, encoded: EncodedArguments, sent_at: datetime) -> TaskSendPayload:
        return TaskSendPayload(
            task_id=task_id,
            task_name=self.task_name,
            queue_name=self.queue_name,
            priority=self.priority,
            args=encoded.args_json,
            kwargs=encoded.kwargs_json,
            sent_at=sent_at,
            good_until=self.good_until,
            enqueue_delay_seconds=self.delay_seconds,
            task_options=self.task_options,
            flags=self.flags,
            max_retries=self.max_retries,
            idempotency_key=self.idempotency_key,
            # Needed only to compare two sends with the same key.
            command_sha=None if self.idempotency_key is None else command_sha(self.task_name, encoded, self.signature),
            enqueue_sha=self.fingerprint.sha(encoded, format_utc(sent_at)),
        )

    def compact_builder(self, codec: TaskCodec) -> Callable[[tuple[Any, ...]], CompactPayload | None]:
        """Return a function that builds payloads from short positional arguments; it returns None for all others.

        The fast path of single sends, written as one closure: CPU caches are cold between two sends, so every extra
        function call or attribute costs a microsecond or more.
        """
        plain_call_types, sha = codec.plain_call_types, self.fingerprint.positional_hasher()
        name, queue, priority, retries = self.task_name, self.queue_name, self.priority, self.max_retries
        options, flags = self.task_options, self.flags

        def build_compact(args: tuple[Any, ...]) -> CompactPayload | None:
            try:
                if tuple(map(type, args)) not in plain_call_types or (text := encode_short_scalars(args)) is None:
                    return None
            except TypeError:  # a type with an unhashable metaclass
                return None
            sent_at = format_utc_now()
            digest = sha(text, sent_at)
            return CompactPayload(
                str(uuid7()), name, queue, priority, text, "{}", sent_at, retries, options, flags, digest
            )

        return build_compact


# Bulk sends


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSend(Sequence[TaskSendPayload]):
    """The payloads of one bulk send. Thousands share most fields, so each is built only when it is accessed."""

    template: SendTemplate
    sent_at: datetime
    ids: Sequence[str]
    arguments: Sequence[EncodedArguments]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> TaskSendPayload: ...
    @overload
    def __getitem__(self, index: slice) -> list[TaskSendPayload]: ...
    def __getitem__(self, index: int | slice) -> TaskSendPayload | list[TaskSendPayload]:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self))[index]]
        return self.template.build_payload(self.ids[index], self.arguments[index], self.sent_at)


class BulkBatches:
    """The insert batches of a bulk send, built while iterating; can be iterated again for a resend."""

    def __init__(self, bulk: BulkSend) -> None:
        self.bulk = bulk
        self.is_started = False
        """Whether a batch may have reached the server; until then, nothing can be stored."""
        self.may_be_stored = False
        """Whether the answer to a commit was lost. Stays True: a resend that fails does not tell what became of it."""

    def __iter__(self) -> Iterator[InsertBatch]:
        self.is_started = True
        bulk, first = self.bulk, self.bulk[0]
        sent_at = format_utc(bulk.sent_at)
        for span in batch_slices(bulk.arguments):
            rows = bulk.arguments[span]
            yield InsertBatch(
                shared=first,
                ids="\n".join(bulk.ids[span]),
                args="\n".join([row.args_json for row in rows]),
                kwargs="\n".join([row.kwargs_json for row in rows]),
                shas="\n".join([bulk.template.fingerprint.sha(row, sent_at) for row in rows]),
            )


def batch_slices(rows: Sequence[EncodedArguments]) -> Iterator[slice]:
    """Split rows into batches within both limits; a single row over the character limit is a batch of its own."""
    start = characters = 0
    for index, row in enumerate(rows):
        length = len(row.args_json) + len(row.kwargs_json)
        if index - start == BATCH_ROWS or (characters + length > BATCH_CHARACTERS and index > start):
            yield slice(start, index)
            start, characters = index, 0
        characters += length
    if start < len(rows):
        yield slice(start, len(rows))


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
            raise ValueError(f"must be a mapping, a tuple or a bind() value, got {type(item).__qualname__}")


# Validation of options


def check_options(options: SendOptions) -> None:
    """Raise ValueError for an invalid option."""
    if options.good_until is not None:
        check_good_until(options.good_until)
    for fault in () if options.flags is None else flag_faults(options.flags):
        raise ValueError(fault.message)
    if options.priority is not None and not is_priority(options.priority):
        raise ValueError("priority must be an integer from 1 to 100")
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
    raise ValueError(f"connection must be an asyncpg connection{advice}")


def delay_seconds(delay: float | timedelta | None) -> float | None:
    """A delay in seconds; raises ValueError if it is negative, too long or not a number."""
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_DELAY_S:
        raise ValueError("delay must be a timedelta or seconds, at least 0 and less than a thousand years")
    return float(seconds)


def with_delay(options: SendOptions, delay: float | timedelta) -> SendOptions:
    """The options of a `schedule` call; raises ValueError if the delay is missing or given twice."""
    if cast("object", delay) is None:
        raise ValueError("schedule needs a delay: seconds or a timedelta")
    if options.delay is not None:
        raise ValueError("delay is given twice: in with_options and in schedule")
    return replace(options, delay=delay)


def validation_error(message: str, *, exception: BaseException | None = None) -> TaskSendError:
    return TaskSendError(code=TaskSendErrorCode.VALIDATION_FAILED, message=message, exception=exception)


# Retrying failed sends

RETRYABLE_CODES = frozenset({TaskSendErrorCode.ENQUEUE_FAILED, TaskSendErrorCode.ASYNC_CONTEXT})
RESEND_ALL_HINT = "nothing was stored, call send_many again"


def payload_to_resend(
    error: TaskSendError, task: TaskDefinition, *, delayed: bool, connection: object | None
) -> TaskSendPayload | Err[TaskSendError]:
    """Return the payload of a failed send, or why `retry_send` (with `delayed`, `retry_schedule`) rejects it."""
    if not isinstance(cast("object", error), TaskSendError):
        return Err(validation_error(f"expected a TaskSendError, got {type(error).__qualname__}"))
    payload = error.payload
    if payload is None and error.code is TaskSendErrorCode.ENQUEUE_FAILED:
        advice = RESEND_ALL_HINT if error.task_id is None else lookup_hint(error.task_id)
        return Err(validation_error(f"retry_send does not accept errors of send_many; {advice}"))
    if payload is None or error.code not in RETRYABLE_CODES:
        return Err(validation_error(f"a send that failed with {error.code} cannot be retried"))
    if payload.task_name != task.name:
        return Err(validation_error(f"the error belongs to task {payload.task_name!r}, not to {task.name!r}"))
    if (payload.enqueue_delay_seconds is not None) is not delayed:
        return Err(validation_error("use retry_schedule for a delayed send and retry_send for any other"))
    if error.needs_connection and connection is None:
        return Err(
            validation_error(f"the send used connection=; use with_options(connection=…).{retry_method_name(payload)}")
        )
    try:
        check_connection(connection)
        return refingerprint(payload, task.codec.signature)
    except ValueError as invalid:
        return Err(validation_error(f"{task.name}: {invalid}", exception=invalid))


def retry_method_name(payload: TaskSendPayload) -> str:
    return "retry_send_async" if payload.enqueue_delay_seconds is None else "retry_schedule_async"


def lookup_hint(first_task_id: str) -> str:
    """Return how to find out whether a bulk send was stored, which is all or nothing."""
    return f"check whether task {first_task_id}, the first of them, exists"


def refingerprint(payload: TaskSendPayload, signature: CallSignature) -> TaskSendPayload:
    """Recompute the fingerprints, so that a payload that the caller changed does not match the one stored first.

    Raises ValueError if its arguments are not valid JSON.
    """
    encoded = EncodedArguments(args_json=payload.args, kwargs_json=payload.kwargs)
    return replace(
        payload,
        command_sha=None if payload.idempotency_key is None else command_sha(payload.task_name, encoded, signature),
        enqueue_sha=enqueue_sha(
            encoded,
            task_name=payload.task_name,
            queue_name=payload.queue_name,
            priority=payload.priority,
            sent_at=payload.sent_at,
            good_until=payload.good_until,
            delay_seconds=payload.enqueue_delay_seconds,
            options_json=fingerprint_options(
                task_options=payload.task_options,
                flags=payload.flags,
                max_retries=payload.max_retries,
                idempotency_key=payload.idempotency_key,
            ),
        ),
    )


def fingerprint_options(*, task_options: str, flags: str, max_retries: int, idempotency_key: str | None) -> str:
    """The options that the fingerprint covers, as one canonical JSON document."""
    key = canonical_json(idempotency_key)
    return f'{{"flags":{flags},"idempotency_key":{key},"max_retries":{max_retries},"task":{task_options}}}'
