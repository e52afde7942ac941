"""Fingerprints that tell a resend from a different send: SHA-256 over canonical JSON, 64 hex digits."""

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


# Timestamps as text: ISO 8601 in UTC

_NS_PER_SECOND = 10**9

_latest_second: tuple[int, str] = (-1, "")


def format_utc(at: datetime) -> str:
    return (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat()


def format_utc_now() -> str:
    """`format_utc(datetime.now(UTC))` in half the time, because the text of the latest second is cached."""
    global _latest_second  # noqa: PLW0603  # one tuple replaced at once, so no lock is needed
    second, rest = divmod(time.time_ns(), _NS_PER_SECOND)
    known, text = _latest_second
    if second != known:
        text = datetime.fromtimestamp(second, UTC).isoformat()[:-6]
        _latest_second = second, text
    micros = rest // 1000
    return f"{text}.{micros:06d}+00:00" if micros else f"{text}+00:00"


# Hashes

SHORT_DOCUMENT_BYTES = 1024


def _find_fast_sha256() -> Callable[[bytes], Any]:
    """Return Python's built-in SHA-256; OpenSSL's is faster only for long texts, because its setup takes longer."""
    for module in ("_sha2", "_sha256"):  # from Python 3.12 on, and before
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
    """Hash one send: equal for a resend under the same id, different for any other; `options_json` is canonical."""
    fingerprint = Fingerprint.of(
        task_name=task_name,
        queue_name=queue_name,
        priority=priority,
        good_until=good_until,
        delay_seconds=delay_seconds,
        options_json=options_json,
    )
    return fingerprint.sha(arguments, format_utc(sent_at))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`enqueue_sha` for sends that differ only in arguments and `sent_at`; the constant parts are encoded once.

    The hashed text is canonical JSON: its parts are canonical and joined in the order of the keys.
    """

    _between_args_and_kwargs: str
    _after_kwargs: str

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
        delay = "null" if delay_seconds is None else repr(float(delay_seconds))
        deadline = "null" if good_until is None else f'"{format_utc(good_until)}"'
        return cls(
            f',"delay":{delay},"good_until":{deadline},"kwargs":',
            f',"name":{canonical_json(task_name)},"options":{options_json},"priority":{priority},'
            f'"queue":{canonical_json(queue_name)},"sent_at":',
        )

    def positional_hasher(self) -> Callable[[str, str], str]:
        """Return a faster `sha` for short positional arguments; it takes their JSON text and `sent_at`."""
        before, after = '{"args":', f'{self._between_args_and_kwargs}{{}}{self._after_kwargs}"'

        def sha(args: str, sent_at: str) -> str:
            return _fast_sha256(f'{before}{args}{after}{sent_at}"}}'.encode()).hexdigest()

        return sha

    def sha(self, arguments: EncodedArguments, sent_at: str) -> str:
        """Hash one send; `sent_at` is ISO 8601 in UTC."""
        args, kwargs = arguments
        return _sha(f'{{"args":{args}{self._between_args_and_kwargs}{kwargs}{self._after_kwargs}"{sent_at}"}}')


def command_sha(task_name: str, arguments: EncodedArguments, signature: CallSignature) -> str:
    """Hash a call: equal for every send of this task with these arguments, whether positional or keyword."""
    args, kwargs = signature.prefer_keywords(arguments.args, arguments.kwargs)
    return _sha(canonical_json({"args": args, "kwargs": kwargs, "name": task_name}))


def _sha(document: str) -> str:
    encoded = document.encode()
    return (_fast_sha256 if len(encoded) <= SHORT_DOCUMENT_BYTES else hashlib.sha256)(encoded).hexdigest()
