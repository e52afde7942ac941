"""What sends have in common, and the payloads made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from horsies.codec.fingerprint import EnqueueSeal, command_sha
from horsies.codec.ids import IDS
from horsies.codec.instants import in_utc, now_in_utc
from horsies.codec.wire import short_text
from horsies.model.sending import PlainSend, TaskSendPayload

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from horsies.codec.shape import Shape
    from horsies.codec.task import EncodedArguments, TaskCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
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
    seal: EnqueueSeal
    shape: Shape
    is_plain: bool
    """Whether its sends are due at once, never end and have no key."""

    def send(self, task_id: str, encoded: EncodedArguments, sent_at: datetime) -> PlainSend | TaskSendPayload:
        """A call of this pattern, as it is sent."""
        if not self.is_plain:
            return self.payload(task_id, encoded, sent_at)
        sent_at_text = in_utc(sent_at)
        return PlainSend(
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
            self.seal.sha(encoded, sent_at_text),
        )

    def quick(self, codec: TaskCodec) -> Callable[[tuple[Any, ...]], PlainSend | None]:
        """Makes plain sends of short arguments by position; None where a call needs a closer look.

        Between two sends the processor's caches belong to others, and each function that has to be fetched again costs
        a microsecond and more: hence one, with all that it needs at hand.
        """
        plain_calls, sha = codec.plain_calls, self.seal.of_args_alone()
        name, queue, priority, retries = self.task_name, self.queue_name, self.priority, self.max_retries
        options, flags = self.task_options, self.flags

        def cast(args: tuple[Any, ...]) -> PlainSend | None:
            try:
                if tuple(map(type, args)) not in plain_calls or (text := short_text(args)) is None:
                    return None
            except TypeError:  # there are types that have no hash
                return None
            sent_at = now_in_utc()
            digest = sha(text, sent_at)
            return PlainSend(IDS.text(), name, queue, priority, text, "{}", sent_at, retries, options, flags, digest)

        return cast

    def payload(self, task_id: str, encoded: EncodedArguments, sent_at: datetime) -> TaskSendPayload:
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
            enqueue_sha=self.seal.sha(encoded, in_utc(sent_at)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk(Sequence[TaskSendPayload]):
    """The payloads of one bulk send. Thousands of them share all but a few fields, so each is made when looked at."""

    pattern: Pattern
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
        return self.pattern.payload(self.ids[index], self.arguments[index], self.sent_at)
