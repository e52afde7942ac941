"""Fingerprints that tell a repeated send from a different one: SHA-256 over canonical JSON, 64 hex digits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from horsies.codec.canonical_json import canonical_json

if TYPE_CHECKING:
    from horsies.codec.arguments import CallSignature, EncodedArguments


# Instants as text: ISO 8601 in UTC.

_NS = 10**9

_latest_second: tuple[int, str] = (-1, "")


def format_utc(at: datetime) -> str:
    return (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat()


def format_utc_now() -> str:
    """As `in_utc(datetime.now(UTC))`, in half the time: most of it is the same as a moment ago."""
    global _latest_second  # noqa: PLW0603  # replaced whole, so threads need not take turns
    second, rest = divmod(time.time_ns(), _NS)
    known, text = _latest_second
    if second != known:
        text = datetime.fromtimestamp(second, UTC).isoformat()[:-6]
        _latest_second = second, text
    micros = rest // 1000
    return f"{text}.{micros:06d}+00:00" if micros else f"{text}+00:00"


SHORT_DOCUMENT_BYTES = 1024


def _find_fast_sha256() -> Callable[[bytes], Any]:
    """SHA-256 without OpenSSL, which is faster over long texts only: it takes twice as long to get going."""
    for module in ("_sha2", "_sha256"):  # its name from Python 3.12 on, and before
        try:
            return import_module(module).sha256
        except ImportError:
            continue
    return hashlib.sha256


_fast_sha256 = _find_fast_sha256()


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
    seal = Fingerprint.of(
        task_name=task_name,
        queue_name=queue_name,
        priority=priority,
        good_until=good_until,
        delay_seconds=delay_seconds,
        options_json=options_json,
    )
    return seal.sha(arguments, format_utc(sent_at))


@dataclass(frozen=True, slots=True)
class Fingerprint:
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
    ) -> Fingerprint:
        return cls(
            f',"delay":{_number(delay_seconds)},"good_until":{_instant_json(good_until)},"kwargs":',
            f',"name":{canonical_json(task_name)},"options":{options_json},"priority":{priority},'
            f'"queue":{canonical_json(queue_name)},"sent_at":',
        )

    def positional_hasher(self) -> Callable[[str, str], str]:
        """The same for short arguments that are all given by position; of their text, and of `sent_at`."""
        before, after = '{"args":', f'{self._between}{{}}{self._after}"'

        def sha(args: str, sent_at: str) -> str:
            return _fast_sha256(f'{before}{args}{after}{sent_at}"}}'.encode()).hexdigest()

        return sha

    def sha(self, arguments: EncodedArguments, sent_at: str) -> str:
        """`sent_at` as ISO 8601 in UTC."""
        args, kwargs = arguments
        return _sha(f'{{"args":{args}{self._between}{kwargs}{self._after}"{sent_at}"}}')


def command_sha(task_name: str, arguments: EncodedArguments, shape: CallSignature) -> str:
    """The same for every send of this task with these arguments, by position or by name, whoever sends it and when."""
    args, kwargs = shape.prefer_keywords(arguments.args, arguments.kwargs)
    return _sha(canonical_json({"args": args, "kwargs": kwargs, "name": task_name}))


def _sha(document: str) -> str:
    written = document.encode()
    return (_fast_sha256 if len(written) <= SHORT_DOCUMENT_BYTES else hashlib.sha256)(written).hexdigest()


def _instant_json(at: datetime | None) -> str:
    return "null" if at is None else f'"{format_utc(at)}"'


def _number(seconds: float | None) -> str:
    return "null" if seconds is None else repr(float(seconds))
