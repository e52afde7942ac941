"""Building payloads from calls."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Err,
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
from horsies.client.delivery import AnyPayload
from horsies.client.payload import SendOptions, refingerprint
from horsies.model.send import CompactPayload, to_full_payload

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def greet(name: str, times: int = 1) -> TaskResult[str, TaskError]:
    return TaskResult(ok=name * times)


def make_task(config: AppConfig | None = None, name: str = "greet", **options: Any) -> TaskFunction[..., str]:
    return Horsies(config or AppConfig()).task(name, **options)(greet)


def full_payload(task: TaskFunction[..., Any] | None = None, /, **options: Any) -> TaskSendPayload:
    return to_full_payload(build(task or make_task(), SendOptions(**options), "ann", times=2))


def build(task: TaskFunction[..., Any], options: SendOptions, /, *args: Any, **kwargs: Any) -> AnyPayload:
    payload = task.payload_builder.build(options, args, kwargs)
    assert not isinstance(payload, Err)
    return payload


def rejection(task: TaskFunction[..., Any], *args: Any, **options: Any) -> tuple[TaskSendErrorCode, str]:
    result = task.payload_builder.build(SendOptions(**options), args or ("ann",), {})
    assert isinstance(result, Err)
    assert result.error.payload is None
    return result.error.code, result.error.message


def test_positional_and_keyword_arguments_stay_separate() -> None:
    payload = full_payload()
    assert (payload.args, payload.kwargs) == ('["ann"]', '{"times":2}')


def test_task_ids_are_unique_and_increasing() -> None:
    task = make_task()
    ids = [full_payload(task).task_id for _ in range(100)]
    assert sorted(set(ids)) == ids


def test_defaults_of_a_send_without_options() -> None:
    payload = full_payload()
    assert (payload.enqueue_delay_seconds, payload.good_until, payload.idempotency_key) == (None, None, None)
    assert (payload.queue_name, payload.priority, payload.max_retries) == ("default", 100, 0)
    assert payload.sent_at.tzinfo is UTC


def test_payload_contains_the_retry_policy() -> None:
    task = make_task(retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["BUSY"]))
    assert full_payload(task).max_retries == 2
    assert '"intervals":[1,2]' in full_payload(task).task_options


@pytest.mark.parametrize(
    ("sent_with", "on_task", "expected"), [(3, 5, 3), (None, 5, 5), (None, None, 7)], ids=["send", "task", "queue"]
)
def test_most_specific_priority_wins(sent_with: int | None, on_task: int | None, expected: int) -> None:
    config = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail", priority=7)])
    task = make_task(config, queue_name="mail", priority=on_task)
    assert full_payload(task, priority=sent_with).priority == expected


@pytest.mark.parametrize("delay", [0, 1.5, timedelta(seconds=1.5)])
def test_a_delay_is_stored_in_seconds(delay: Any) -> None:
    assert full_payload(delay=delay).enqueue_delay_seconds == (1.5 if delay else 0)


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
    assert full_payload(idempotency_key="é" * 127 + "x").idempotency_key is not None


def test_good_until_in_the_past_is_accepted() -> None:
    past = NOON - timedelta(days=9999)
    assert full_payload(good_until=past).good_until == past


def test_send_flags_override_task_flags() -> None:
    task = make_task(flags=["a", "b"])
    assert full_payload(task).flags == '{"a":true,"b":true}'
    assert full_payload(task, flags={"b": False, "c": True}).flags == '{"a":true,"b":false,"c":true}'
    assert full_payload(task, flags=["c"]).flags == '{"a":true,"b":true,"c":true}'


@pytest.mark.parametrize("args", [(), (5, 6, 7), (["list"],), ("nul\0",), ("lone\ud800",)])
def test_invalid_arguments_are_rejected(args: tuple[Any, ...]) -> None:
    result = make_task().payload_builder.build(SendOptions(), args, {})
    assert isinstance(result, Err)
    assert result.error.code is TaskSendErrorCode.VALIDATION_FAILED


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
    first, again = full_payload(task, idempotency_key="k"), full_payload(task, idempotency_key="k", delay=5)
    assert first.command_sha == again.command_sha
    assert first.enqueue_sha != again.enqueue_sha
    assert full_payload(task).command_sha is None


def test_command_sha_ignores_positional_or_keyword_form() -> None:
    task, keyed = make_task(), SendOptions(idempotency_key="k")
    by_position = to_full_payload(build(task, keyed, "ann", 2))
    by_name = to_full_payload(build(task, keyed, times=2, name="ann"))
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
    payload, signature = full_payload(task, idempotency_key="k"), task.definition.codec.signature
    assert refingerprint(payload, signature) == payload
    assert refingerprint(replace(payload, **change), signature).enqueue_sha != payload.enqueue_sha


def test_bulk_send_of_a_non_iterable_is_rejected() -> None:
    nothing: Any = None
    error = make_task().payload_builder.build_many(SendOptions(), nothing).unwrap_err()
    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "'NoneType' object is not iterable" in error.message


@pytest.mark.parametrize(
    ("options", "is_compact"),
    [
        ({}, True),
        ({"priority": 3, "flags": ["slow"]}, True),
        ({"delay": 0}, False),
        ({"good_until": NOON}, False),
        ({"idempotency_key": "k"}, False),
    ],
)
def test_send_without_delay_deadline_and_key_is_compact(options: dict[str, Any], is_compact: bool) -> None:
    assert isinstance(build(make_task(), SendOptions(**options), "ann"), CompactPayload) is is_compact


def test_compact_and_full_payloads_have_the_same_fingerprint() -> None:
    task = make_task()
    payload = full_payload(task, priority=3)
    assert refingerprint(payload, task.definition.codec.signature) == payload


def scaled(name: str, factor: float, times: int = 1, is_loud: bool = False) -> TaskResult[str, TaskError]:
    return TaskResult(ok=name * times if is_loud else f"{factor}")


SCALED = Horsies(AppConfig()).task("scaled", priority=7)(scaled)


@given(st.text(), st.floats(), st.integers(), st.booleans(), st.integers(2, 4))
def test_fast_path_builds_the_same_payload(name: str, factor: float, times: int, is_loud: bool, count: int) -> None:
    args = (name, factor, times, is_loud)[:count]
    compact, payload = (
        SCALED.payload_builder.try_build_compact(args),
        SCALED.payload_builder.build(SendOptions(), args, {}),
    )
    if compact is None:
        return
    assert not isinstance(payload, Err)
    fast, slow = compact.full_payload, to_full_payload(payload)
    assert replace(fast, task_id=slow.task_id, sent_at=slow.sent_at, enqueue_sha=slow.enqueue_sha) == slow
    assert refingerprint(fast, SCALED.definition.codec.signature) == fast


@pytest.mark.parametrize("args", [("ann", 1.5), ("ann", -0.0, 7), ('a\n"b\\', 1e-7, 10**30, True)])
def test_fast_path_takes_short_positional_arguments(args: tuple[Any, ...]) -> None:
    assert isinstance(SCALED.payload_builder.try_build_compact(args), CompactPayload)


class UnhashableType(type):
    def __eq__(cls, other: object) -> bool:
        return True

    __hash__: Any = None


class UnhashableValue(metaclass=UnhashableType):
    pass


@pytest.mark.parametrize(
    "args",
    [
        (),
        (UnhashableValue(), 1.5),
        ("ann",),
        ("ann", 1),
        ("ann", 1.5, True),
        ("ann", 1.5, 1, False, 2),
        ("ann", float("nan")),
        ("ann", 1e16),
        ("änn", 1.5),
        ("\ud800", 1.5),
        ("a\0", 1.5),
        ("a" * 500, 1.5),
        ("ann", 1.5, 10**5000),
    ],
)
def test_fast_path_declines_other_arguments(args: tuple[Any, ...]) -> None:
    assert SCALED.payload_builder.try_build_compact(args) is None


def test_value_of_an_unhashable_type_is_rejected() -> None:
    code, message = rejection(make_task(), UnhashableValue())
    assert (code, message) == (TaskSendErrorCode.VALIDATION_FAILED, "greet: argument 'name': must be text")


def test_fast_path_is_off_if_size_limits_are_small() -> None:
    task = make_task(AppConfig(payload=PayloadPolicy(reject_bytes=1999)))
    assert task.payload_builder.try_build_compact(("ann",)) is None
    assert (
        make_task(AppConfig(payload=PayloadPolicy(reject_bytes=2000))).payload_builder.try_build_compact(("ann",))
        is not None
    )


def test_repr_of_a_payload_hides_arguments() -> None:
    compact = build(make_task(), SendOptions(), "ann")
    assert isinstance(compact, CompactPayload)
    assert "ann" not in repr(full_payload()) + repr(compact)
