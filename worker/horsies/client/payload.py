"""Makes the payloads of one task; whatever is the same for each send is worked out once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import inf
from types import MappingProxyType
from typing import Any, TypeAlias, cast, overload

from horsies.codec.arguments import CallSignature, EncodedArguments, TaskCodec
from horsies.codec.canonical_json import SHORT_CHARACTERS, canonical_json, encode_short_scalars
from horsies.codec.fingerprint import Fingerprint, command_sha, enqueue_sha, format_utc, format_utc_now
from horsies.codec.ids import ID_GENERATOR
from horsies.model.result import Err, Ok
from horsies.model.send import CompactPayload, TaskSendError, TaskSendErrorCode, TaskSendPayload, TaskSendResult
from horsies.model.settings import AppConfig
from horsies.model.task import check_good_until, effective_priority, is_priority
from horsies.registry import TaskDefinition
from horsies.registry.definition import flag_faults, is_storable_text, normalize_flags
from horsies.store.tasks import InsertBatch

# What sends have in common, and the payloads made of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTemplate:
    """What all sends of one task with the same options have in common."""

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
    shape: CallSignature
    is_compact: bool
    """Whether its sends are due at once, never end and have no key."""

    def build(self, task_id: str, encoded: EncodedArguments, sent_at: datetime) -> CompactPayload | TaskSendPayload:
        """A call of this pattern, as it is sent."""
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

    def compact_builder(self, codec: TaskCodec) -> Callable[[tuple[Any, ...]], CompactPayload | None]:
        """Makes plain sends of short arguments by position; None where a call needs a closer look.

        Between two sends the processor's caches belong to others, and each function that has to be fetched again costs
        a microsecond and more: hence one, with all that it needs at hand.
        """
        plain_calls, sha = codec.plain_call_types, self.fingerprint.positional_hasher()
        name, queue, priority, retries = self.task_name, self.queue_name, self.priority, self.max_retries
        options, flags = self.task_options, self.flags

        def cast(args: tuple[Any, ...]) -> CompactPayload | None:
            try:
                if tuple(map(type, args)) not in plain_calls or (text := encode_short_scalars(args)) is None:
                    return None
            except TypeError:  # there are types that have no hash
                return None
            sent_at = format_utc_now()
            digest = sha(text, sent_at)
            return CompactPayload(
                ID_GENERATOR.next_id(), name, queue, priority, text, "{}", sent_at, retries, options, flags, digest
            )

        return cast

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
            command_sha=None if self.idempotency_key is None else command_sha(self.task_name, encoded, self.shape),
            enqueue_sha=self.fingerprint.sha(encoded, format_utc(sent_at)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSend(Sequence[TaskSendPayload]):
    """The payloads of one bulk send. Thousands of them share all but a few fields, so each is made when looked at."""

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
            return [self[each] for each in range(len(self))[index]]
        return self.template.build_payload(self.ids[index], self.arguments[index], self.sent_at)


# What a send says beside its arguments, and what makes no sense there.

LONGEST_KEY_BYTES = 255
LONGEST_DELAY_S = 1000 * 365 * 86400
"""A thousand years; much later than that is no time that the database knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """What a single send says beside its arguments."""

    good_until: datetime | None = None
    delay: float | timedelta | None = None
    idempotency_key: str | None = None
    flags: Iterable[str] | Mapping[str, bool] | None = None
    priority: int | None = None
    connection: object | None = None


DEFAULT_OPTIONS = SendOptions()
_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BoundCall:
    """Arguments of one call, for `send_many`."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


SendItem: TypeAlias = BoundCall | Mapping[str, Any] | tuple[Any, ...]
"""One task of a `send_many`: what `bind` returned, keyword arguments, or positional ones."""


def arguments_of(item: object) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What an item of `send_many` stands for: keyword arguments, positional ones, or what `bind` returned."""
    match item:
        case tuple():
            return cast("tuple[Any, ...]", item), _NO_KEYWORDS
        case BoundCall():
            return item.args, item.kwargs
        case Mapping():
            return (), cast("Mapping[str, Any]", item)
        case _:
            raise ValueError(f"must be a mapping, a tuple or what bind() returned, got {type(item).__qualname__}")


def check_options(options: SendOptions) -> None:
    """Raise ValueError for an option that makes no sense."""
    if options.good_until is not None:
        check_good_until(options.good_until)
    for fault in () if options.flags is None else flag_faults(options.flags):
        raise ValueError(fault.message)
    if options.priority is not None and not is_priority(options.priority):
        raise ValueError("priority must be a whole number of 1 to 100")
    delay_seconds(options.delay)
    key = options.idempotency_key
    if key is not None and not (is_storable_text(key) and len(key.encode()) <= LONGEST_KEY_BYTES):
        raise ValueError(f"idempotency_key must be text of 1 to {LONGEST_KEY_BYTES} bytes")
    check_connection(options.connection)


def check_connection(connection: object | None) -> None:
    """Raise ValueError for what is no connection of the driver."""
    # By what it can do, for instrumented connections are no instances of the driver's own class.
    if connection is None or all(hasattr(connection, name) for name in ("transaction", "is_in_transaction", "fetch")):
        return
    advice = "; acquire a connection from the pool and give that" if hasattr(connection, "acquire") else ""
    raise ValueError(f"connection must be an asyncpg connection{advice}")


def delay_seconds(delay: float | timedelta | None) -> float | None:
    """A delay in seconds; a negative, endless or non-numeric one is refused."""
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_DELAY_S:
        raise ValueError("delay must be seconds of at least 0 (and less than a thousand years), or a timedelta")
    return float(seconds)


def fingerprint_options(*, task_options: str, flags: str, max_retries: int, idempotency_key: str | None) -> str:
    """All options of a send that its fingerprint covers, as one canonical document."""
    key = canonical_json(idempotency_key)
    return f'{{"flags":{flags},"idempotency_key":{key},"max_retries":{max_retries},"task":{task_options}}}'


def refingerprint(payload: TaskSendPayload, shape: CallSignature) -> TaskSendPayload:
    """The payload with fingerprints of what it holds now: whoever changed it sends another payload.

    ValueError when its arguments are no longer JSON.
    """
    encoded = EncodedArguments(args_json=payload.args, kwargs_json=payload.kwargs)
    return replace(
        payload,
        command_sha=None if payload.idempotency_key is None else command_sha(payload.task_name, encoded, shape),
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


def validation_error(message: str, *, exception: BaseException | None = None) -> TaskSendError:
    return TaskSendError(code=TaskSendErrorCode.VALIDATION_FAILED, message=message, exception=exception)


def with_delay(options: SendOptions, delay: float | timedelta) -> SendOptions:
    """The options of a `schedule` call, which brings the delay itself; ValueError where it brings none or a second."""
    if cast("object", delay) is None:
        raise ValueError("schedule needs a delay: seconds, or a timedelta")
    if options.delay is not None:
        raise ValueError("delay is given twice: in with_options and in schedule")
    return replace(options, delay=delay)


LONGEST_UTF8 = 4
"""Bytes of the longest character, so that short text need not be encoded to be measured."""

# Of each task name once, however many apps of this process send it.
_WARNED_OF: set[str] = set()

logger = logging.getLogger("horsies.send")


def _never_quick(_: tuple[Any, ...]) -> None:
    return None


class PayloadBuilder:
    """Turns calls of one task into payloads, before the database is asked for anything."""

    def __init__(self, task: TaskDefinition, config: AppConfig) -> None:
        self._task = task
        self._limits = config.payload
        limits = [each for each in (config.payload.warn_bytes, config.payload.reject_bytes) if each is not None]
        self._max_unchecked_characters = min(limits, default=inf) / LONGEST_UTF8
        """Characters of arguments that are surely below every limit."""
        self._queue_priority = next((q.priority for q in config.custom_queues or () if q.name == task.queue_name), None)
        self._options_json = task.options_json
        self._plain = self._template(DEFAULT_OPTIONS)
        self.try_build_compact = (
            self._plain.compact_builder(task.codec)
            if self._max_unchecked_characters >= SHORT_CHARACTERS
            else _never_quick
        )
        """One call by position as it is sent, made in a third of the time; None where it takes a closer look."""

    def build(
        self, options: SendOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> CompactPayload | TaskSendPayload | Err[TaskSendError]:
        """One call as it is sent, or why it cannot be."""
        try:
            pattern = self._plain if options is DEFAULT_OPTIONS else self._template(options)
            encoded = self._task.codec.encode(args, kwargs)
        except ValueError as refused:
            return Err(validation_error(f"{self._task.name}: {refused}", exception=refused))
        is_large = len(encoded.args_json) + len(encoded.kwargs_json) > self._max_unchecked_characters
        if is_large and (too_large := self._size_error(encoded)) is not None:
            return Err(too_large)
        return pattern.build(ID_GENERATOR.next_id(), encoded, datetime.now(UTC))

    def build_many(self, options: SendOptions, items: Iterable[object]) -> TaskSendResult[BulkSend]:
        """The payloads of a bulk send; the first item that cannot be sent is named by its index.

        Each item is written down before the next is asked for: whoever makes them may use one and the same row again.
        """
        if options.idempotency_key is not None:
            return Err(validation_error(f"{self._task.name}: idempotency_key is for single sends"))
        try:
            pattern = self._plain if options is DEFAULT_OPTIONS else self._template(options)
            each = iter(items)
        except (ValueError, TypeError) as refused:
            return Err(validation_error(f"{self._task.name}: {refused}", exception=refused))
        arguments: list[EncodedArguments] = []
        encode, unnoticed = self._task.codec.encode, self._max_unchecked_characters
        for index, item in enumerate(each):
            try:
                # A tuple, as most items are, need not be asked what it is.
                encoded = encode(item, {}) if type(item) is tuple else encode(*arguments_of(item))  # pyright: ignore[reportUnknownArgumentType]
            except ValueError as refused:
                return Err(validation_error(f"item {index}: {self._task.name}: {refused}", exception=refused))
            is_large = len(encoded.args_json) + len(encoded.kwargs_json) > unnoticed
            if is_large and (too_large := self._size_error(encoded, f"item {index}: ")) is not None:
                return Err(too_large)
            arguments.append(encoded)
        return Ok(
            BulkSend(
                template=pattern,
                sent_at=datetime.now(UTC),
                ids=ID_GENERATOR.next_ids(len(arguments)),
                arguments=arguments,
            )
        )

    def _size_error(self, encoded: EncodedArguments, where: str = "") -> TaskSendError | None:
        """Refuse arguments above the limit; warn once of large ones. Asked only of those that may be."""
        warn, reject = self._limits.warn_bytes, self._limits.reject_bytes
        name, size = self._task.name, encoded.size_bytes
        if reject is not None and size > reject:
            text = f"{where}{name}: arguments of {size} bytes, payload_reject_bytes is {reject}"
            return TaskSendError(code=TaskSendErrorCode.PAYLOAD_TOO_LARGE, message=text)
        if warn is not None and size > warn and name not in _WARNED_OF:
            _WARNED_OF.add(name)
            logger.warning("%s: arguments of %d bytes; store large data elsewhere", name, size)
        return None

    def _template(self, options: SendOptions) -> SendTemplate:
        """`ValueError` for an option that makes no sense."""
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
            shape=task.codec.signature,
            is_compact=options.idempotency_key is None and options.good_until is None and delay is None,
        )


# A bulk send, cut into statements.

BATCH_ROWS = 1000
BATCH_CHARACTERS = 32_000_000
"""Text of a statement; much more would be held in memory by both sides several times over."""


class BulkBatches:
    """The batches of a bulk send, each made when its turn comes; they can be gone through again."""

    def __init__(self, bulk: BulkSend) -> None:
        self.bulk = bulk
        self.is_started = False
        """Whether any of them may have reached the server; before that, nothing can be stored."""
        self.may_be_stored = False
        """Whether the answer to one of the tries was lost: no later one tells what came of that."""

    def __iter__(self) -> Iterator[InsertBatch]:
        self.is_started = True
        bulk, like = self.bulk, self.bulk[0]
        sent_at = format_utc(bulk.sent_at)
        for span in batch_slices(bulk.arguments):
            rows = bulk.arguments[span]
            yield InsertBatch(
                shared=like,
                ids="\n".join(bulk.ids[span]),
                args="\n".join([row.args_json for row in rows]),
                kwargs="\n".join([row.kwargs_json for row in rows]),
                shas="\n".join([bulk.template.fingerprint.sha(row, sent_at) for row in rows]),
            )


def batch_slices(rows: Sequence[EncodedArguments]) -> Iterator[slice]:
    """Where each batch begins and ends; only a row that is too long by itself makes one longer than it should be."""
    start = characters = 0
    for index, row in enumerate(rows):
        length = len(row.args_json) + len(row.kwargs_json)
        if index - start == BATCH_ROWS or (characters + length > BATCH_CHARACTERS and index > start):
            yield slice(start, index)
            start, characters = index, 0
        characters += length
    if start < len(rows):
        yield slice(start, len(rows))


# Sending once more what a failed send carries.

RESENDABLE_CODES = frozenset({TaskSendErrorCode.ENQUEUE_FAILED, TaskSendErrorCode.ASYNC_CONTEXT})
RESEND_ALL_HINT = "nothing is stored: call send_many again"


def payload_to_resend(
    error: TaskSendError, task: TaskDefinition, *, delayed: bool, connection: object | None
) -> TaskSendPayload | Err[TaskSendError]:
    """The payload that `task` may send again, as `retry_schedule` where it is `delayed`; else why it may not."""
    if not isinstance(cast("object", error), TaskSendError):
        return Err(validation_error(f"what is sent again is a TaskSendError, got {type(error).__qualname__}"))
    payload = error.payload
    if payload is None and error.code is TaskSendErrorCode.ENQUEUE_FAILED:
        advice = RESEND_ALL_HINT if error.task_id is None else lookup_hint(error.task_id)
        return Err(validation_error(f"this is the error of a send_many; {advice}"))
    if payload is None or error.code not in RESENDABLE_CODES:
        return Err(validation_error(f"{error.code} carries nothing that can be sent again"))
    if payload.task_name != task.name:
        return Err(validation_error(f"the error is of task {payload.task_name!r}, not of {task.name!r}"))
    if (payload.enqueue_delay_seconds is not None) is not delayed:
        return Err(validation_error("use retry_schedule for a delayed send, and retry_send for any other"))
    if error.needs_connection and connection is None:
        return Err(
            validation_error(
                f"it was part of a transaction; use with_options(connection=…).{retry_method_name(payload)}"
            )
        )
    try:
        check_connection(connection)
        return refingerprint(payload, task.codec.signature)
    except ValueError as refused:
        return Err(validation_error(f"{task.name}: {refused}", exception=refused))


def retry_method_name(payload: TaskSendPayload) -> str:
    """The name of the method that sends it again."""
    return "retry_send_async" if payload.enqueue_delay_seconds is None else "retry_schedule_async"


def lookup_hint(first: str) -> str:
    """What to do about a bulk of which nobody knows whether it is stored."""
    return f"look for task {first}, the first of them"
