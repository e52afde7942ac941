"""From a call to a payload: bound, encoded, measured and fingerprinted, before the database is asked for anything."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from horsies.codec.fingerprint import command_sha, enqueue_sha
from horsies.codec.ids import IDS
from horsies.codec.task import EncodedArguments
from horsies.codec.wire import PayloadRefused, canonical
from horsies.model.expiry import check_good_until
from horsies.model.queues import effective_priority, is_priority
from horsies.model.result import Err, Ok
from horsies.model.sending import TaskSendError, TaskSendErrorCode, TaskSendPayload, TaskSendResult
from horsies.registry.checks import flag_faults, is_stored_text
from horsies.registry.definition import flags_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horsies.model.settings import AppConfig
    from horsies.registry import TaskDefinition

LONGEST_KEY_BYTES = 255
LONGEST_DELAY_S = 1000 * 365 * 86400
"""A thousand years; much later than that is no time that the database knows."""

# Of each task name once, however many apps of this process send it.
_WARNED_OF: set[str] = set()

logger = logging.getLogger("horsies.send")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """What a single send says beside its arguments."""

    good_until: datetime | None = None
    delay: float | timedelta | None = None
    idempotency_key: str | None = None
    flags: Iterable[str] | Mapping[str, bool] | None = None
    priority: int | None = None
    connection: object | None = None


PLAIN = SendOptions()


@dataclass(frozen=True, slots=True)
class BoundCall:
    """Arguments of one call, for `send_many`."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, item: object) -> BoundCall:
        """An item of `send_many`: keyword arguments, positional ones, or what `bind` returned."""
        match item:
            case BoundCall():
                return item
            case Mapping():
                return cls((), cast("Mapping[str, Any]", item))
            case tuple():
                return cls(cast("tuple[Any, ...]", item))
            case _:
                raise ValueError(f"must be a mapping, a tuple or a bind value, got {type(item).__qualname__}")


class Mould:
    """Makes the payloads of one task; everything that is the same for each send is worked out once."""

    def __init__(self, task: TaskDefinition, config: AppConfig) -> None:
        self._task = task
        self._payload = config.payload
        self._queue_priority = next((q.priority for q in config.custom_queues or () if q.name == task.queue_name), None)
        self._options_json = task.stored_options
        self._flags_json = canonical(dict(task.flags))

    def cast(
        self, options: SendOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskSendResult[TaskSendPayload]:
        """The payload of one call, or why it cannot be sent."""
        return self._cast(options, args, kwargs, sent_at=datetime.now(UTC))

    def _cast(
        self, options: SendOptions, args: Sequence[Any], kwargs: Mapping[str, Any], *, sent_at: datetime
    ) -> TaskSendResult[TaskSendPayload]:
        try:
            if options is not PLAIN:
                check_options(options)
            return self._cast_one(options, self._task.codec.encode(args, kwargs), sent_at)
        except (PayloadRefused, ValueError) as refused:
            return Err(refusal(f"{self._task.name}: {refused}", exception=refused))

    def cast_many(self, options: SendOptions, calls: Iterable[BoundCall]) -> TaskSendResult[list[TaskSendPayload]]:
        """The payloads of a bulk send; the first call that cannot be sent is named by its index."""
        if options.idempotency_key is not None:
            return Err(refusal(f"{self._task.name}: idempotency_key is for single sends"))
        payloads: list[TaskSendPayload] = []
        sent_at = datetime.now(UTC)
        for index, call in enumerate(calls):
            result = self._cast(options, call.args, call.kwargs, sent_at=sent_at)
            if isinstance(result, Err):
                return Err(replace(result.error, message=f"item {index}: {result.error.message}"))
            payloads.append(result.value)
        return Ok(payloads)

    def _size_error(self, encoded: EncodedArguments) -> TaskSendError | None:
        """Refuse arguments above the limit; warn once of large ones."""
        policy = self._payload
        if policy.warn_bytes is None and policy.reject_bytes is None:
            return None
        size = encoded.size_bytes
        if policy.reject_bytes is not None and size > policy.reject_bytes:
            text = f"{self._task.name}: arguments of {size} bytes, payload_reject_bytes is {policy.reject_bytes}"
            return TaskSendError(code=TaskSendErrorCode.PAYLOAD_TOO_LARGE, message=text)
        if policy.warn_bytes is not None and size > policy.warn_bytes and self._task.name not in _WARNED_OF:
            _WARNED_OF.add(self._task.name)
            logger.warning("%s: arguments of %d bytes; store large data elsewhere", self._task.name, size)
        return None

    def _cast_one(
        self, options: SendOptions, encoded: EncodedArguments, sent_at: datetime
    ) -> TaskSendResult[TaskSendPayload]:
        if too_large := self._size_error(encoded):
            return Err(too_large)
        delay = delay_seconds(options.delay)
        priority = effective_priority(
            sent_with=options.priority, task=self._task.options.priority, queue=self._queue_priority
        )
        name, queue = self._task.name, self._task.queue_name
        key = options.idempotency_key
        return Ok(
            TaskSendPayload(
                task_id=str(IDS.next()),
                task_name=name,
                queue_name=queue,
                priority=priority,
                args=encoded.args_json,
                kwargs=encoded.kwargs_json,
                sent_at=sent_at,
                good_until=options.good_until,
                enqueue_delay_seconds=delay,
                task_options=self._options_json,
                flags=self._flags(options),
                max_retries=self._task.max_retries,
                idempotency_key=key,
                command_sha=None if key is None else command_sha(name, encoded),
                enqueue_sha=enqueue_sha(
                    encoded,
                    task_name=name,
                    queue_name=queue,
                    priority=priority,
                    sent_at=sent_at,
                    good_until=options.good_until,
                    delay_seconds=delay,
                    options_json=self._options_json,
                ),
            )
        )

    def _flags(self, options: SendOptions) -> str:
        if options.flags is None:
            return self._flags_json
        return canonical({**self._task.flags, **flags_of(options.flags)})


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
    if key is not None and not (is_stored_text(key) and len(key.encode()) <= LONGEST_KEY_BYTES):
        raise ValueError(f"idempotency_key must be text of 1 to {LONGEST_KEY_BYTES} bytes")
    # By what it can do, for instrumented connections are no instances of the driver's own class.
    if options.connection is not None and not all(
        hasattr(options.connection, name) for name in ("transaction", "fetch")
    ):
        raise ValueError("connection must be an asyncpg connection")


def delay_seconds(delay: float | timedelta | None) -> float | None:
    """A delay in seconds; a negative, endless or non-numeric one is refused."""
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_DELAY_S:
        raise ValueError("delay must be seconds of at least 0 (and less than a thousand years), or a timedelta")
    return float(seconds)


def resealed(payload: TaskSendPayload) -> TaskSendPayload:
    """The payload with fingerprints of what it holds now: whoever changed it sends another payload."""
    encoded = EncodedArguments(args_json=payload.args, kwargs_json=payload.kwargs)
    return replace(
        payload,
        command_sha=None if payload.idempotency_key is None else command_sha(payload.task_name, encoded),
        enqueue_sha=enqueue_sha(
            encoded,
            task_name=payload.task_name,
            queue_name=payload.queue_name,
            priority=payload.priority,
            sent_at=payload.sent_at,
            good_until=payload.good_until,
            delay_seconds=payload.enqueue_delay_seconds,
            options_json=payload.task_options,
        ),
    )


def refusal(message: str, *, exception: BaseException | None = None) -> TaskSendError:
    return TaskSendError(code=TaskSendErrorCode.VALIDATION_FAILED, message=message, exception=exception)


def with_delay(options: SendOptions, delay: float | timedelta) -> SendOptions:
    """The options of a `schedule` call, which brings the delay itself."""
    if options.delay is not None:
        raise ValueError("delay is given twice: in with_options and in schedule")
    return replace(options, delay=delay)
