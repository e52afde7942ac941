"""Fingerprints of sends and calls, and timestamps as text."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.codec import fingerprint
from horsies.codec.arguments import CallSignature, EncodedArguments
from horsies.codec.canonical_json import canonical_json
from horsies.codec.fingerprint import command_sha, enqueue_sha, format_utc, format_utc_now

SENT_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ARGUMENTS = EncodedArguments(args_json='[1,"ü"]', kwargs_json='{"a":null}')
SIGNATURE = CallSignature(
    positional=("id", "to"),
    keywords=frozenset({"to", "a"}),
    required=("id",),
    var_positional="more",
    var_keyword="extra",
)
SEND: dict[str, Any] = {"task_name": "mail.send", "queue_name": "mail", "priority": 5, "sent_at": SENT_AT}


def test_enqueue_sha_is_the_hash_of_canonical_json() -> None:
    document = {
        "name": "mail.send",
        "queue": "mail",
        "priority": 5,
        "args": [1, "ü"],
        "kwargs": {"a": None},
        "sent_at": "2026-01-02T03:04:05+00:00",
        "good_until": "2026-01-02T04:04:05+00:00",
        "delay": 2.0,
        "options": {"timeout_ms": 1000},
    }

    sha = enqueue_sha(
        ARGUMENTS,
        **SEND,
        good_until=SENT_AT + timedelta(hours=1),
        delay_seconds=2,
        options_json=canonical_json({"timeout_ms": 1000}),
    )

    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert sha == sha256(text.encode()).hexdigest()


def test_fingerprints_are_pinned() -> None:
    assert enqueue_sha(ARGUMENTS, **SEND) == "435f37e6e044c36e7dc395c3839d7d7c437bafafa7d92c58de8b46838eb0ab96"
    assert (
        command_sha("mail.send", ARGUMENTS, SIGNATURE)
        == "c873b5555dbf5615092218db344222a5f2045c35e22a82b0ffd320c797e9ac51"
    )


@pytest.mark.parametrize("length", [10, 700, 1000, 5000])
def test_short_and_long_documents_use_the_same_hash(length: int) -> None:
    text = canonical_json({"args": ["x" * length], "kwargs": {}, "name": "mail.send"})
    arguments = EncodedArguments(args_json=canonical_json(["x" * length]), kwargs_json="{}")
    signature = CallSignature(positional=(), keywords=frozenset(), required=(), var_positional="more", var_keyword=None)
    assert command_sha("mail.send", arguments, signature) == sha256(text.encode()).hexdigest()


def test_openssl_hash_is_used_without_a_builtin_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint._find_fast_sha256() is not sha256
    for name in ("_sha2", "_sha256"):
        monkeypatch.setitem(sys.modules, name, None)
    assert fingerprint._find_fast_sha256() is sha256


@pytest.mark.parametrize(
    "change",
    [
        {"task_name": "mail.sent"},
        {"queue_name": "post"},
        {"priority": 6},
        {"sent_at": SENT_AT + timedelta(microseconds=1)},
        {"good_until": SENT_AT},
        {"delay_seconds": 0.0},
        {"options_json": '{"timeout_ms":1000}'},
        {"arguments": EncodedArguments(args_json='[1,"u"]', kwargs_json='{"a":null}')},
        {"arguments": EncodedArguments(args_json='[1,"ü"]', kwargs_json="{}")},
    ],
)
def test_every_part_of_a_send_changes_its_fingerprint(change: dict[str, Any]) -> None:
    changed: dict[str, Any] = {"arguments": ARGUMENTS, **SEND, **change}

    assert enqueue_sha(**changed) != enqueue_sha(ARGUMENTS, **SEND)


def test_time_zone_does_not_change_the_fingerprint() -> None:
    in_other_zone: dict[str, Any] = {**SEND, "sent_at": SENT_AT.astimezone(timezone(timedelta(hours=9)))}

    assert enqueue_sha(ARGUMENTS, **in_other_zone) == enqueue_sha(ARGUMENTS, **SEND)


def test_command_sha_covers_name_and_arguments() -> None:
    other = EncodedArguments(args_json="[]", kwargs_json='{"a":null}')
    calls = [("mail.send", ARGUMENTS), ("mail", ARGUMENTS), ("mail", other)]

    assert len({command_sha(name, arguments, SIGNATURE) for name, arguments in calls}) == 3


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (("[1,2]", "{}"), ("[1]", '{"to":2}'), True),
        (("[1,2]", '{"a":3}'), ("[1]", '{"a":3,"to":2}'), True),
        (("[1,2]", "{}"), ("[2,1]", "{}"), False),
        (("[1]", '{"to":2}'), ("[1]", '{"id":2}'), False),
        (("[1,2,3,4]", "{}"), ("[1,2,4,3]", "{}"), False),
    ],
)
def test_command_sha_ignores_positional_or_keyword_form(
    one: tuple[str, str], other: tuple[str, str], is_same: bool
) -> None:
    shas = {command_sha("mail", EncodedArguments(*call), SIGNATURE) for call in (one, other)}

    assert (len(shas) == 1) is is_same


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.lists(st.integers(0, 10**10 * 10**6), min_size=1))
def test_format_utc_now_equals_format_utc(micros: list[int]) -> None:
    for micro in (*micros, micros[-1] // 10**6 * 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fingerprint.time, "time_ns", lambda: micro * 1000 + 999)  # noqa: B023  # called immediately
            assert format_utc_now() == format_utc(EPOCH + timedelta(microseconds=micro))


def test_other_time_zones_are_formatted_in_utc() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5)))
    assert format_utc(at) == "2026-01-01T22:04:05+00:00"
