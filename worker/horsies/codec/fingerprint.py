"""Fingerprints that tell a repeated send from a different one: SHA-256 over canonical JSON, 64 hex digits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256
from typing import TYPE_CHECKING

from horsies.codec.wire import canonical

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.codec.shape import Shape
    from horsies.codec.task import EncodedArguments


def enqueue_sha(
    arguments: EncodedArguments,
    *,
    task_name: str,
    queue_name: str,
    priority: int,
    sent_at: datetime,
    good_until: datetime | None = None,
    delay_seconds: float | None = None,
    options_json: str = "{}",
) -> str:
    """The same for a send that is repeated under the same id, and for no other; `options_json` is canonical."""
    seal = EnqueueSeal.of(
        task_name=task_name,
        queue_name=queue_name,
        priority=priority,
        good_until=good_until,
        delay_seconds=delay_seconds,
        options_json=options_json,
    )
    return seal.sha(arguments, instant_json(sent_at))


@dataclass(frozen=True, slots=True)
class EnqueueSeal:
    """`enqueue_sha` for sends that differ in their arguments and their moment only; the rest is written once.

    All parts are canonical text already: put down in the order of the keys, nothing is encoded again.
    """

    _between: str
    _after: str

    @classmethod
    def of(
        cls,
        *,
        task_name: str,
        queue_name: str,
        priority: int,
        good_until: datetime | None,
        delay_seconds: float | None,
        options_json: str,
    ) -> EnqueueSeal:
        return cls(
            f',"delay":{_number(delay_seconds)},"good_until":{instant_json(good_until)},"kwargs":',
            f',"name":{canonical(task_name)},"options":{options_json},"priority":{priority},'
            f'"queue":{canonical(queue_name)},"sent_at":',
        )

    def sha(self, arguments: EncodedArguments, sent_at_json: str) -> str:
        document = f'{{"args":{arguments.args_json}{self._between}{arguments.kwargs_json}{self._after}{sent_at_json}}}'
        return sha256(document.encode()).hexdigest()


def command_sha(task_name: str, arguments: EncodedArguments, shape: Shape) -> str:
    """The same for every send of this task with these arguments, by position or by name, whoever sends it and when."""
    args, kwargs = shape.named(arguments.args, arguments.kwargs)
    return sha256(canonical({"args": args, "kwargs": kwargs, "name": task_name}).encode()).hexdigest()


def instant_json(at: datetime | None) -> str:
    if at is None:
        return "null"
    return f'"{(at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat()}"'


def _number(seconds: float | None) -> str:
    return "null" if seconds is None else repr(float(seconds))
