"""From a call to a payload, before the database is asked for anything."""

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


def task_of(config: AppConfig | None = None, name: str = "greet", **options: Any) -> TaskFunction[..., str]:
    return Horsies(config or AppConfig()).task(name, **options)(greet)


def cast(task: TaskFunction[..., Any] | None = None, /, **options: Any) -> TaskSendPayload:
    return to_full_payload(sent(task or task_of(), SendOptions(**options), "ann", times=2))


def sent(task: TaskFunction[..., Any], options: SendOptions, /, *args: Any, **kwargs: Any) -> AnyPayload:
    moulded = task.payload_builder.build(options, args, kwargs)
    assert not isinstance(moulded, Err)
    return moulded


def refused(task: TaskFunction[..., Any], *args: Any, **options: Any) -> tuple[TaskSendErrorCode, str]:
    result = task.payload_builder.build(SendOptions(**options), args or ("ann",), {})
    assert isinstance(result, Err)
    assert result.error.payload is None
    return result.error.code, result.error.message


def test_arguments_keep_their_place() -> None:
    payload = cast()
    assert (payload.args, payload.kwargs) == ('["ann"]', '{"times":2}')


def test_each_send_has_an_id_of_its_own_that_rises() -> None:
    task = task_of()
    ids = [cast(task).task_id for _ in range(100)]
    assert sorted(set(ids)) == ids


def test_a_plain_send_has_no_delay_no_end_and_no_key() -> None:
    payload = cast()
    assert (payload.enqueue_delay_seconds, payload.good_until, payload.idempotency_key) == (None, None, None)
    assert (payload.queue_name, payload.priority, payload.max_retries) == ("default", 100, 0)
    assert payload.sent_at.tzinfo is UTC


def test_the_policy_travels_with_the_payload() -> None:
    task = task_of(retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["BUSY"]))
    assert cast(task).max_retries == 2
    assert '"intervals":[1,2]' in cast(task).task_options


@pytest.mark.parametrize(
    ("sent_with", "on_task", "expected"), [(3, 5, 3), (None, 5, 5), (None, None, 7)], ids=["send", "task", "queue"]
)
def test_the_most_particular_priority_counts(sent_with: int | None, on_task: int | None, expected: int) -> None:
    config = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail", priority=7)])
    task = task_of(config, queue_name="mail", priority=on_task)
    assert cast(task, priority=sent_with).priority == expected


@pytest.mark.parametrize("delay", [0, 1.5, timedelta(seconds=1.5)])
def test_a_delay_is_stored_in_seconds(delay: Any) -> None:
    assert cast(delay=delay).enqueue_delay_seconds == (1.5 if delay else 0)


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
        {"good_until": datetime(2030, 1, 1)},  # noqa: DTZ001  # the point of the test
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
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    code, message = refused(task_of(), **options)
    assert code is TaskSendErrorCode.VALIDATION_FAILED
    assert next(iter(options)) in message


def test_the_longest_key_is_accepted() -> None:
    assert cast(idempotency_key="é" * 127 + "x").idempotency_key is not None


def test_a_time_that_has_passed_is_still_sent() -> None:
    past = NOON - timedelta(days=9999)
    assert cast(good_until=past).good_until == past


def test_flags_of_a_send_go_over_those_of_the_task() -> None:
    task = task_of(flags=["a", "b"])
    assert cast(task).flags == '{"a":true,"b":true}'
    assert cast(task, flags={"b": False, "c": True}).flags == '{"a":true,"b":false,"c":true}'
    assert cast(task, flags=["c"]).flags == '{"a":true,"b":true,"c":true}'


@pytest.mark.parametrize("args", [(), (5, 6, 7), (["list"],), ("nul\0",), ("lone\ud800",)])
def test_arguments_that_cannot_be_stored_are_refused(args: tuple[Any, ...]) -> None:
    result = task_of().payload_builder.build(SendOptions(), args, {})
    assert isinstance(result, Err)
    assert result.error.code is TaskSendErrorCode.VALIDATION_FAILED


def test_a_refusal_names_the_parameter_and_never_the_value() -> None:
    _, message = refused(task_of(), "ann", "secret")
    assert "'times'" in message
    assert "secret" not in message


def test_large_arguments_are_warned_of_once_a_name_and_process(caplog: pytest.LogCaptureFixture) -> None:
    config = AppConfig(payload=PayloadPolicy(warn_bytes=10))
    with caplog.at_level(logging.WARNING, "horsies.send"):
        for app_config in (config, config):
            task = task_of(config=app_config, name="warned.large")
            sent(task, SendOptions(), "x" * 20)
            sent(task, SendOptions(), "x" * 20)
        sent(task_of(config, name="warned.other"), SendOptions(), "x" * 20)
    named = [record.getMessage().split("task=")[1].split()[0] for record in caplog.records]
    assert named == ["warned.large", "warned.other"]
    assert "xxx" not in caplog.text


def test_arguments_above_the_limit_are_refused() -> None:
    task = task_of(AppConfig(payload=PayloadPolicy(warn_bytes=None, reject_bytes=20)))
    sent(task, SendOptions(), "x" * 14)
    code, message = refused(task, "é" * 14)
    assert code is TaskSendErrorCode.PAYLOAD_TOO_LARGE
    assert "34 bytes" in message


def test_the_key_belongs_to_the_arguments_and_not_to_the_moment() -> None:
    task = task_of()
    first, again = cast(task, idempotency_key="k"), cast(task, idempotency_key="k", delay=5)
    assert first.command_sha == again.command_sha
    assert first.enqueue_sha != again.enqueue_sha
    assert cast(task).command_sha is None


def test_the_key_belongs_to_the_arguments_and_not_to_how_they_are_given() -> None:
    task, keyed = task_of(), SendOptions(idempotency_key="k")
    by_position = to_full_payload(sent(task, keyed, "ann", 2))
    by_name = to_full_payload(sent(task, keyed, times=2, name="ann"))
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
def test_a_changed_payload_has_another_seal(change: dict[str, Any]) -> None:
    task = task_of()
    payload, shape = cast(task, idempotency_key="k"), task.definition.codec.signature
    assert refingerprint(payload, shape) == payload
    assert refingerprint(replace(payload, **change), shape).enqueue_sha != payload.enqueue_sha


def test_what_cannot_be_gone_through_is_no_bulk() -> None:
    nothing: Any = None
    error = task_of().payload_builder.build_many(SendOptions(), nothing).unwrap_err()
    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "'NoneType' object is not iterable" in error.message


@pytest.mark.parametrize(
    ("options", "is_plain"),
    [
        ({}, True),
        ({"priority": 3, "flags": ["slow"]}, True),
        ({"delay": 0}, False),
        ({"good_until": NOON}, False),
        ({"idempotency_key": "k"}, False),
    ],
)
def test_a_send_is_plain_where_it_is_due_at_once_never_ends_and_has_no_key(
    options: dict[str, Any], is_plain: bool
) -> None:
    assert isinstance(sent(task_of(), SendOptions(**options), "ann"), CompactPayload) is is_plain


def test_a_plain_send_is_sealed_as_its_payload_is() -> None:
    task = task_of()
    payload = cast(task, priority=3)
    assert refingerprint(payload, task.definition.codec.signature) == payload


def scaled(name: str, factor: float, times: int = 1, is_loud: bool = False) -> TaskResult[str, TaskError]:
    return TaskResult(ok=name * times if is_loud else f"{factor}")


SCALED = Horsies(AppConfig()).task("scaled", priority=7)(scaled)


@given(st.text(), st.floats(), st.integers(), st.booleans(), st.integers(2, 4))
def test_the_short_way_sends_what_the_long_way_sends(
    name: str, factor: float, times: int, is_loud: bool, count: int
) -> None:
    args = (name, factor, times, is_loud)[:count]
    quick, moulded = (
        SCALED.payload_builder.try_build_compact(args),
        SCALED.payload_builder.build(SendOptions(), args, {}),
    )
    if quick is None:
        return
    assert not isinstance(moulded, Err)
    made, long = quick.full_payload, to_full_payload(moulded)
    assert replace(made, task_id=long.task_id, sent_at=long.sent_at, enqueue_sha=long.enqueue_sha) == long
    assert refingerprint(made, SCALED.definition.codec.signature) == made


@pytest.mark.parametrize("args", [("ann", 1.5), ("ann", -0.0, 7), ('a\n"b\\', 1e-7, 10**30, True)])
def test_most_calls_by_position_go_the_short_way(args: tuple[Any, ...]) -> None:
    assert isinstance(SCALED.payload_builder.try_build_compact(args), CompactPayload)


class Unhashable(type):
    def __eq__(cls, other: object) -> bool:
        return True

    __hash__: Any = None


class Odd(metaclass=Unhashable):
    pass


@pytest.mark.parametrize(
    "args",
    [
        (),
        (Odd(), 1.5),
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
def test_what_takes_a_closer_look_goes_the_long_way(args: tuple[Any, ...]) -> None:
    assert SCALED.payload_builder.try_build_compact(args) is None


def test_a_value_whose_type_has_no_hash_is_refused_as_any_other() -> None:
    code, message = refused(task_of(), Odd())
    assert (code, message) == (TaskSendErrorCode.VALIDATION_FAILED, "greet: argument 'name': must be text")


def test_where_even_short_arguments_may_be_too_large_all_go_the_long_way() -> None:
    task = task_of(AppConfig(payload=PayloadPolicy(reject_bytes=1999)))
    assert task.payload_builder.try_build_compact(("ann",)) is None
    assert (
        task_of(AppConfig(payload=PayloadPolicy(reject_bytes=2000))).payload_builder.try_build_compact(("ann",))
        is not None
    )


def test_the_repr_of_a_payload_hides_its_arguments() -> None:
    plain = sent(task_of(), SendOptions(), "ann")
    assert isinstance(plain, CompactPayload)
    assert "ann" not in repr(cast()) + repr(plain)
