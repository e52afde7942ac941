"""Building payloads from calls."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    PayloadPolicy,
    QueueMode,
    RetryPolicy,
    TaskError,
    TaskFunction,
    TaskResult,
    TaskSendErrorCode,
    TaskSendPayload,
)
from horsies.client.payload import SendOptions, SendRejected, check_options, refingerprint

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def greet(name: str, times: int = 1) -> TaskResult[str, TaskError]:
    return TaskResult(ok=name * times)


def make_task(config: AppConfig | None = None, name: str = "greet", **options: Any) -> TaskFunction[..., str]:
    return Horsies(config or AppConfig()).task(name, **options)(greet)


def payload_of(task: TaskFunction[..., Any] | None = None, /, **options: Any) -> TaskSendPayload:
    return build(task or make_task(), SendOptions(**options), "ann", times=2)


def build(task: TaskFunction[..., Any], options: SendOptions, /, *args: Any, **kwargs: Any) -> TaskSendPayload:
    return task.payload_builder.build(options, args, kwargs)


def rejection(task: TaskFunction[..., Any], *args: Any, **options: Any) -> tuple[TaskSendErrorCode, str]:
    with pytest.raises(SendRejected) as raised:
        task.payload_builder.build(SendOptions(**options), args or ("ann",), {})
    return raised.value.code, str(raised.value)


def test_positional_and_keyword_arguments_stay_separate() -> None:
    payload = payload_of()
    assert (payload.args, payload.kwargs) == ('["ann"]', '{"times":2}')


def test_task_ids_are_unique_and_increasing() -> None:
    task = make_task()
    ids = [payload_of(task).task_id for _ in range(100)]
    assert sorted(set(ids)) == ids


def test_defaults_of_a_send_without_options() -> None:
    payload = payload_of()
    assert (payload.enqueue_delay_seconds, payload.good_until, payload.idempotency_key) == (None, None, None)
    assert (payload.queue_name, payload.priority, payload.max_retries) == ("default", 100, 0)
    assert payload.sent_at.tzinfo is UTC


def test_payload_contains_the_retry_policy() -> None:
    task = make_task(retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["BUSY"]))
    assert payload_of(task).max_retries == 2
    assert '"intervals":[1,2]' in payload_of(task).task_options


@pytest.mark.parametrize(
    ("sent_with", "on_task", "expected"), [(3, 5, 3), (None, 5, 5), (None, None, 7)], ids=["send", "task", "queue"]
)
def test_most_specific_priority_wins(sent_with: int | None, on_task: int | None, expected: int) -> None:
    config = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail", priority=7)])
    task = make_task(config, queue_name="mail", priority=on_task)
    assert payload_of(task, priority=sent_with).priority == expected


@pytest.mark.parametrize("delay", [0, 1.5, timedelta(seconds=1.5)])
def test_a_delay_is_stored_in_seconds(delay: Any) -> None:
    assert payload_of(delay=delay).enqueue_delay_seconds == (1.5 if delay else 0)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": timedelta(seconds=-1)},
        {"delay": True},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 10**400},
        {"delay": 10**15},
        {"delay": "5"},
        {"priority": 0},
        {"priority": 101},
        {"priority": True},
        {"good_until": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"good_until": "2030-01-01"},
        {"good_until": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 256},
        {"idempotency_key": "é" * 128},
        {"idempotency_key": "a\0b"},
        {"idempotency_key": "a\ud800b"},
        {"idempotency_key": 5},
        {"flags": "resilient"},
        {"flags": {"resilient": 1}},
        {"flags": 5},
        {"connection": "postgresql:///db"},
    ],
)
def test_invalid_option_is_rejected(options: dict[str, Any]) -> None:
    code, message = rejection(make_task(), **options)
    assert code is TaskSendErrorCode.VALIDATION_FAILED
    assert next(iter(options)) in message


def test_idempotency_key_of_maximum_length_is_accepted() -> None:
    assert payload_of(idempotency_key="é" * 127 + "x").idempotency_key is not None


def test_good_until_in_the_past_is_accepted() -> None:
    past = NOON - timedelta(days=9999)
    assert payload_of(good_until=past).good_until == past


def test_send_flags_override_task_flags() -> None:
    task = make_task(flags=["a", "b"])
    assert payload_of(task).flags == '{"a":true,"b":true}'
    assert payload_of(task, flags={"b": False, "c": True}).flags == '{"a":true,"b":false,"c":true}'
    assert payload_of(task, flags=["c"]).flags == '{"a":true,"b":true,"c":true}'


@pytest.mark.parametrize("args", [(), (5, 6, 7), (["list"],), ("nul\0",), ("lone\ud800",)])
def test_invalid_arguments_are_rejected(args: tuple[Any, ...]) -> None:
    with pytest.raises(SendRejected) as raised:
        make_task().payload_builder.build(SendOptions(), args, {})
    assert raised.value.code is TaskSendErrorCode.VALIDATION_FAILED


def test_error_names_the_parameter_but_not_the_value() -> None:
    _, message = rejection(make_task(), "ann", "secret")
    assert "'times'" in message
    assert "secret" not in message


def test_large_arguments_are_warned_about_once_per_task_name(caplog: pytest.LogCaptureFixture) -> None:
    config = AppConfig(payload=PayloadPolicy(warn_bytes=10))
    with caplog.at_level(logging.WARNING, "horsies.send"):
        for app_config in (config, config):
            task = make_task(config=app_config, name="warned.large")
            build(task, SendOptions(), "x" * 20)
            build(task, SendOptions(), "x" * 20)
        build(make_task(config, name="warned.other"), SendOptions(), "x" * 20)
    named = [record.getMessage().split("task=")[1].split()[0] for record in caplog.records]
    assert named == ["warned.large", "warned.other"]
    assert "xxx" not in caplog.text


def test_arguments_above_the_size_limit_are_rejected() -> None:
    task = make_task(AppConfig(payload=PayloadPolicy(warn_bytes=None, reject_bytes=20)))
    build(task, SendOptions(), "x" * 14)
    code, message = rejection(task, "é" * 14)
    assert code is TaskSendErrorCode.PAYLOAD_TOO_LARGE
    assert "34 bytes" in message


def test_command_sha_ignores_options_and_time() -> None:
    task = make_task()
    first, again = payload_of(task, idempotency_key="k"), payload_of(task, idempotency_key="k", delay=5)
    assert first.command_sha == again.command_sha
    assert first.enqueue_sha != again.enqueue_sha
    assert payload_of(task).command_sha is None


def test_command_sha_ignores_positional_or_keyword_form() -> None:
    task, keyed = make_task(), SendOptions(idempotency_key="k")
    by_position = build(task, keyed, "ann", 2)
    by_name = build(task, keyed, times=2, name="ann")
    assert by_position.command_sha == by_name.command_sha
    assert by_position.enqueue_sha != by_name.enqueue_sha


@pytest.mark.parametrize(
    "change",
    [
        {"args": '["bob"]'},
        {"priority": 1},
        {"sent_at": NOON},
        {"good_until": NOON},
        {"flags": '{"slow":true}'},
        {"max_retries": 7},
        {"idempotency_key": "other"},
    ],
)
def test_changed_payload_has_another_fingerprint(change: dict[str, Any]) -> None:
    task = make_task()
    payload, signature = payload_of(task, idempotency_key="k"), task.definition.codec.signature
    assert refingerprint(payload, signature) == payload
    assert refingerprint(payload._replace(**change), signature).enqueue_sha != payload.enqueue_sha


def test_bulk_send_of_a_non_iterable_is_rejected() -> None:
    nothing: Any = None
    with pytest.raises(SendRejected, match="'NoneType' object is not iterable"):
        make_task().payload_builder.build_many(SendOptions(), nothing)


def test_bulk_payloads_equal_single_ones() -> None:
    task = make_task(priority=3)
    bulk = task.payload_builder.build_many(SendOptions(delay=5), [("ann", 2), ("bob",)])
    assert bulk is not None
    assert [(payload.task_id, payload.args, payload.kwargs) for payload in bulk] == [
        (bulk.task_ids[0], '["ann",2]', "{}"),
        (bulk.task_ids[1], '["bob"]', "{}"),
    ]
    for payload in bulk:
        assert refingerprint(payload, task.definition.codec.signature) == payload


def test_error_of_an_item_iterator_is_raised() -> None:
    task = make_task()
    with pytest.raises(ValueError, match="invalid literal"):
        task.payload_builder.build_many(SendOptions(), ((text, int(text)) for text in ("1", "x")))


class UnhashableType(type):
    def __eq__(cls, other: object) -> bool:
        return True

    __hash__: Any = None


class UnhashableValue(metaclass=UnhashableType):
    pass


def test_value_of_an_unhashable_type_is_rejected() -> None:
    code, message = rejection(make_task(), UnhashableValue())
    assert (code, message) == (TaskSendErrorCode.VALIDATION_FAILED, "argument 'name': must be text")


def test_repr_of_a_payload_hides_arguments() -> None:
    assert "ann" not in repr(payload_of())


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"priority": 101}, "got 101"),
        ({"delay": -5}, "got -5"),
        ({"good_until": datetime(2026, 1, 31)}, "got datetime.datetime(2026, 1, 31, 0, 0)"),  # noqa: DTZ001
        ({"connection": "db"}, "got str"),
    ],
)
def test_rejected_option_is_named_with_its_value(options: dict[str, Any], got: str) -> None:
    with pytest.raises(ValueError, match=re.escape(got)) as caught:
        check_options(SendOptions(**options))
    assert str(caught.value).startswith(next(iter(options)))
