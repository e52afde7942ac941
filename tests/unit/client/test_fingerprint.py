"""Fingerprints of sends and calls."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

import pytest

from horsies.client.payload import SendTemplate
from horsies.codec.arguments import CallSignature, EncodedArguments
from horsies.model.send import TaskSendPayload

SENT_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ARGUMENTS = EncodedArguments(args_json='[1,"ü"]', kwargs_json='{"a":null}')
SIGNATURE = CallSignature(
    positional=("id", "to"),
    keywords=frozenset({"to", "a"}),
    required=("id",),
    var_positional="more",
    var_keyword="extra",
)
SHARED = TaskSendPayload(
    task_id="",
    task_name="mail.send",
    queue_name="mail",
    priority=5,
    args="",
    kwargs="",
    sent_at=SENT_AT,
    good_until=None,
    enqueue_delay_seconds=None,
    task_options="{}",
    flags="{}",
    max_retries=0,
    idempotency_key=None,
    command_sha=None,
    enqueue_sha="",
)


def enqueue_sha(arguments: EncodedArguments = ARGUMENTS, sent_at: datetime = SENT_AT, **changed: Any) -> str:
    return SendTemplate(SHARED._replace(**changed), SIGNATURE).build("id", arguments, sent_at).enqueue_sha


def command_sha(task_name: str, arguments: EncodedArguments) -> str | None:
    shared = SHARED._replace(task_name=task_name, idempotency_key="k")
    return SendTemplate(shared, SIGNATURE).build("id", arguments, SENT_AT).command_sha


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
        "options": {"flags": {"slow": True}, "idempotency_key": "k", "max_retries": 2, "task": {"timeout_ms": 1000}},
    }

    sha = enqueue_sha(
        good_until=SENT_AT + timedelta(hours=1),
        enqueue_delay_seconds=2.0,
        task_options='{"timeout_ms":1000}',
        flags='{"slow":true}',
        max_retries=2,
        idempotency_key="k",
    )

    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert sha == sha256(text.encode()).hexdigest()


def test_fingerprints_are_pinned() -> None:
    assert enqueue_sha() == "9b976734627ea21da8e7bb3a189403e78b0454d35aeffd7f6d99d48f576453e3"
    assert command_sha("mail.send", ARGUMENTS) == "c873b5555dbf5615092218db344222a5f2045c35e22a82b0ffd320c797e9ac51"


@pytest.mark.parametrize(
    "change",
    [
        {"task_name": "mail.sent"},
        {"queue_name": "post"},
        {"priority": 6},
        {"sent_at": SENT_AT + timedelta(microseconds=1)},
        {"good_until": SENT_AT},
        {"enqueue_delay_seconds": 0.0},
        {"task_options": '{"timeout_ms":1000}'},
        {"arguments": EncodedArguments(args_json='[1,"u"]', kwargs_json='{"a":null}')},
        {"arguments": EncodedArguments(args_json='[1,"ü"]', kwargs_json="{}")},
    ],
)
def test_every_part_of_a_send_changes_its_fingerprint(change: dict[str, Any]) -> None:
    assert enqueue_sha(**change) != enqueue_sha()


def test_time_zone_does_not_change_the_fingerprint() -> None:
    assert enqueue_sha(sent_at=SENT_AT.astimezone(timezone(timedelta(hours=9)))) == enqueue_sha()


def test_command_sha_covers_name_and_arguments() -> None:
    other = EncodedArguments(args_json="[]", kwargs_json='{"a":null}')
    calls = [("mail.send", ARGUMENTS), ("mail", ARGUMENTS), ("mail", other)]

    assert len({command_sha(name, arguments) for name, arguments in calls}) == 3


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
    shas = {command_sha("mail", EncodedArguments(*call)) for call in (one, other)}

    assert (len(shas) == 1) is is_same
