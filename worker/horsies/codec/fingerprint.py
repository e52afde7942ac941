"""Fingerprints that tell a repeated send from a different one: SHA-256 over canonical JSON, 64 hex digits."""

from __future__ import annotations

from datetime import UTC
from hashlib import sha256
from typing import TYPE_CHECKING

from horsies.codec.wire import canonical

if TYPE_CHECKING:
    from datetime import datetime

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
    # The arguments are canonical text already; writing them here, in the order of the keys, saves encoding them again.
    document = (
        f'{{"args":{arguments.args_json},"delay":{_number(delay_seconds)},'
        f'"good_until":{_instant(good_until)},"kwargs":{arguments.kwargs_json},"name":{canonical(task_name)},'
        f'"options":{options_json},"priority":{priority},"queue":{canonical(queue_name)},'
        f'"sent_at":{_instant(sent_at)}}}'
    )
    return sha256(document.encode()).hexdigest()


def command_sha(task_name: str, arguments: EncodedArguments) -> str:
    """The same for every send of this task with these arguments, whoever sends it and when."""
    document = f'{{"args":{arguments.args_json},"kwargs":{arguments.kwargs_json},"name":{canonical(task_name)}}}'
    return sha256(document.encode()).hexdigest()


def _instant(at: datetime | None) -> str:
    return "null" if at is None else f'"{at.astimezone(UTC).isoformat()}"'


def _number(seconds: float | None) -> str:
    return "null" if seconds is None else repr(float(seconds))
