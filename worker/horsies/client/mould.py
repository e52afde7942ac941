"""Makes the payloads of one task; whatever is the same for each send is worked out once."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

from horsies.client.pattern import Bulk, Pattern
from horsies.client.sending import (
    PLAIN,
    SendOptions,
    arguments_of,
    check_options,
    delay_seconds,
    refusal,
    sealed_options,
)
from horsies.codec.fingerprint import EnqueueSeal
from horsies.codec.ids import IDS
from horsies.codec.wire import SHORT_CHARACTERS, canonical
from horsies.model.queues import effective_priority
from horsies.model.result import Err, Ok
from horsies.model.sending import PlainSend, TaskSendError, TaskSendErrorCode, TaskSendPayload, TaskSendResult
from horsies.registry.definition import flags_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horsies.codec.task import EncodedArguments
    from horsies.model.settings import AppConfig
    from horsies.registry import TaskDefinition

LONGEST_UTF8 = 4
"""Bytes of the longest character, so that short text need not be encoded to be measured."""

# Of each task name once, however many apps of this process send it.
_WARNED_OF: set[str] = set()

logger = logging.getLogger("horsies.send")


def _never_quick(_: tuple[Any, ...]) -> None:
    return None


class Mould:
    """Turns calls of one task into payloads, before the database is asked for anything."""

    def __init__(self, task: TaskDefinition, config: AppConfig) -> None:
        self._task = task
        self._limits = config.payload
        limits = [each for each in (config.payload.warn_bytes, config.payload.reject_bytes) if each is not None]
        self._unnoticed = min(limits, default=inf) / LONGEST_UTF8
        """Characters of arguments that are surely below every limit."""
        self._queue_priority = next((q.priority for q in config.custom_queues or () if q.name == task.queue_name), None)
        self._options_json = task.stored_options
        self._plain = self._pattern(PLAIN)
        self.quick = self._plain.quick(task.codec) if self._unnoticed >= SHORT_CHARACTERS else _never_quick
        """One call by position as it is sent, made in a third of the time; None where it takes a closer look."""

    def cast(
        self, options: SendOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PlainSend | TaskSendPayload | Err[TaskSendError]:
        """One call as it is sent, or why it cannot be."""
        try:
            pattern = self._plain if options is PLAIN else self._pattern(options)
            encoded = self._task.codec.encode(args, kwargs)
        except ValueError as refused:
            return Err(refusal(f"{self._task.name}: {refused}", exception=refused))
        is_large = len(encoded.args_json) + len(encoded.kwargs_json) > self._unnoticed
        if is_large and (too_large := self._size_error(encoded)) is not None:
            return Err(too_large)
        return pattern.send(IDS.text(), encoded, datetime.now(UTC))

    def cast_many(self, options: SendOptions, items: Iterable[object]) -> TaskSendResult[Bulk]:
        """The payloads of a bulk send; the first item that cannot be sent is named by its index.

        Each item is written down before the next is asked for: whoever makes them may use one and the same row again.
        """
        if options.idempotency_key is not None:
            return Err(refusal(f"{self._task.name}: idempotency_key is for single sends"))
        try:
            pattern = self._plain if options is PLAIN else self._pattern(options)
            each = iter(items)
        except (ValueError, TypeError) as refused:
            return Err(refusal(f"{self._task.name}: {refused}", exception=refused))
        arguments: list[EncodedArguments] = []
        encode, unnoticed = self._task.codec.encode, self._unnoticed
        for index, item in enumerate(each):
            try:
                # A tuple, as most items are, need not be asked what it is.
                encoded = encode(item, {}) if type(item) is tuple else encode(*arguments_of(item))  # pyright: ignore[reportUnknownArgumentType]
            except ValueError as refused:
                return Err(refusal(f"item {index}: {self._task.name}: {refused}", exception=refused))
            is_large = len(encoded.args_json) + len(encoded.kwargs_json) > unnoticed
            if is_large and (too_large := self._size_error(encoded, f"item {index}: ")) is not None:
                return Err(too_large)
            arguments.append(encoded)
        return Ok(Bulk(pattern=pattern, sent_at=datetime.now(UTC), ids=IDS.take(len(arguments)), arguments=arguments))

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

    def _pattern(self, options: SendOptions) -> Pattern:
        """`ValueError` for an option that makes no sense."""
        check_options(options)
        task, delay = self._task, delay_seconds(options.delay)
        priority = effective_priority(
            sent_with=options.priority, task=task.options.priority, queue=self._queue_priority
        )
        flags = canonical({**task.flags, **flags_of(() if options.flags is None else options.flags)})
        return Pattern(
            task_name=task.name,
            queue_name=task.queue_name,
            priority=priority,
            good_until=options.good_until,
            delay_seconds=delay,
            task_options=self._options_json,
            flags=flags,
            max_retries=task.max_retries,
            idempotency_key=options.idempotency_key,
            seal=EnqueueSeal.of(
                task_name=task.name,
                queue_name=task.queue_name,
                priority=priority,
                good_until=options.good_until,
                delay_seconds=delay,
                options_json=sealed_options(
                    task_options=self._options_json,
                    flags=flags,
                    max_retries=task.max_retries,
                    idempotency_key=options.idempotency_key,
                ),
            ),
            shape=task.codec.shape,
            is_plain=options.idempotency_key is None and options.good_until is None and delay is None,
        )
