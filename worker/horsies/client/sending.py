"""What a send says beside its arguments, and what makes no sense there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from horsies.codec.fingerprint import command_sha, enqueue_sha
from horsies.codec.task import EncodedArguments
from horsies.codec.wire import canonical
from horsies.model.expiry import check_good_until
from horsies.model.queues import is_priority
from horsies.model.sending import TaskSendError, TaskSendErrorCode, TaskSendPayload
from horsies.registry.checks import flag_faults, is_stored_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horsies.codec.shape import Shape

LONGEST_KEY_BYTES = 255
LONGEST_DELAY_S = 1000 * 365 * 86400
"""A thousand years; much later than that is no time that the database knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """What a single send says beside its arguments."""

    good_until: datetime | None = None
    delay: float | timedelta | None = None
    idempotency_key: str | None = None
    flags: Iterable[str] | Mapping[str, bool] | None = None
    priority: int | None = None
    connection: object | None = None


PLAIN = SendOptions()
_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BoundCall:
    """Arguments of one call, for `send_many`."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


SendItem: TypeAlias = BoundCall | Mapping[str, Any] | tuple[Any, ...]
"""One task of a `send_many`: what `bind` returned, keyword arguments, or positional ones."""


def arguments_of(item: object) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What an item of `send_many` stands for: keyword arguments, positional ones, or what `bind` returned."""
    match item:
        case tuple():
            return cast("tuple[Any, ...]", item), _NO_KEYWORDS
        case BoundCall():
            return item.args, item.kwargs
        case Mapping():
            return (), cast("Mapping[str, Any]", item)
        case _:
            raise ValueError(f"must be a mapping, a tuple or what bind() returned, got {type(item).__qualname__}")


def check_options(options: SendOptions) -> None:
    """Raise ValueError for an option that makes no sense."""
    if options.good_until is not None:
        check_good_until(options.good_until)
    for fault in () if options.flags is None else flag_faults(options.flags):
        raise ValueError(fault.message)
    if options.priority is not None and not is_priority(options.priority):
        raise ValueError("priority must be a whole number of 1 to 100")
    delay_seconds(options.delay)
    key = options.idempotency_key
    if key is not None and not (is_stored_text(key) and len(key.encode()) <= LONGEST_KEY_BYTES):
        raise ValueError(f"idempotency_key must be text of 1 to {LONGEST_KEY_BYTES} bytes")
    check_connection(options.connection)


def check_connection(connection: object | None) -> None:
    """Raise ValueError for what is no connection of the driver."""
    # By what it can do, for instrumented connections are no instances of the driver's own class.
    if connection is None or all(hasattr(connection, name) for name in ("transaction", "is_in_transaction", "fetch")):
        return
    advice = "; acquire a connection from the pool and give that" if hasattr(connection, "acquire") else ""
    raise ValueError(f"connection must be an asyncpg connection{advice}")


def delay_seconds(delay: float | timedelta | None) -> float | None:
    """A delay in seconds; a negative, endless or non-numeric one is refused."""
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_DELAY_S:
        raise ValueError("delay must be seconds of at least 0 (and less than a thousand years), or a timedelta")
    return float(seconds)


def sealed_options(*, task_options: str, flags: str, max_retries: int, idempotency_key: str | None) -> str:
    """All options of a send that its fingerprint covers, as one canonical document."""
    key = canonical(idempotency_key)
    return f'{{"flags":{flags},"idempotency_key":{key},"max_retries":{max_retries},"task":{task_options}}}'


def resealed(payload: TaskSendPayload, shape: Shape) -> TaskSendPayload:
    """The payload with fingerprints of what it holds now: whoever changed it sends another payload.

    ValueError when its arguments are no longer JSON.
    """
    encoded = EncodedArguments(args_json=payload.args, kwargs_json=payload.kwargs)
    return replace(
        payload,
        command_sha=None if payload.idempotency_key is None else command_sha(payload.task_name, encoded, shape),
        enqueue_sha=enqueue_sha(
            encoded,
            task_name=payload.task_name,
            queue_name=payload.queue_name,
            priority=payload.priority,
            sent_at=payload.sent_at,
            good_until=payload.good_until,
            delay_seconds=payload.enqueue_delay_seconds,
            options_json=sealed_options(
                task_options=payload.task_options,
                flags=payload.flags,
                max_retries=payload.max_retries,
                idempotency_key=payload.idempotency_key,
            ),
        ),
    )


def refusal(message: str, *, exception: BaseException | None = None) -> TaskSendError:
    return TaskSendError(code=TaskSendErrorCode.VALIDATION_FAILED, message=message, exception=exception)


def with_delay(options: SendOptions, delay: float | timedelta) -> SendOptions:
    """The options of a `schedule` call, which brings the delay itself; ValueError where it brings none or a second."""
    if cast("object", delay) is None:
        raise ValueError("schedule needs a delay: seconds, or a timedelta")
    if options.delay is not None:
        raise ValueError("delay is given twice: in with_options and in schedule")
    return replace(options, delay=delay)
