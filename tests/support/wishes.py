"""Tasks as they are asked for, in ticks, and as they are sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from hypothesis import strategies as st

from horsies.model.retry import RetryPolicy
from horsies.model.send import TaskSendPayload

QUEUES: Final = ("default", "other")
RETRY_DELAY: Final = 0.5

OK: Final = "OK"
FAILED: Final = "SMTP_DOWN"
CRASHED: Final = "WORKER_CRASHED"
SHUTDOWN: Final = "SHUTDOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A task as it is asked for: when it is due, how long it is good for, and which codes it is retried after."""

    queue: str = "default"
    retries: int = 0
    codes: tuple[str, ...] = ()
    delay: float = 0
    good_for: float = inf


WISHES = st.builds(
    Wish,
    queue=st.sampled_from(QUEUES),
    retries=st.sampled_from([2, 2, 1, 0]),
    codes=st.sampled_from([(CRASHED, FAILED, SHUTDOWN), (CRASHED,), (CRASHED, FAILED), (FAILED,)]),
    delay=st.sampled_from([0, 0, 0, 0, 1.5]),
    good_for=st.sampled_from([inf, inf, inf, inf, 3.25, 1.25]),
)


def delay_after(code: str) -> float:
    """A task that was cut by a stopping worker is due at once."""
    return 0 if code == SHUTDOWN else RETRY_DELAY


def payload_of(task_id: str, wish: Wish, *, tick_s: float) -> TaskSendPayload:
    """The task as a client sends it."""
    now = datetime.now(UTC)
    options: dict[str, object] = {}
    if wish.retries and wish.codes:
        delays = [int(RETRY_DELAY * tick_s)] * wish.retries
        policy = RetryPolicy.fixed(delays, auto_retry_for=wish.codes, jitter=False)
        options = {"retry_policy": policy.model_dump(mode="json")}
    return TaskSendPayload(
        task_id=task_id,
        task_name="mail.send",
        queue_name=wish.queue,
        priority=100,
        args="[]",
        kwargs="{}",
        sent_at=now,
        good_until=None if wish.good_for == inf else now + timedelta(seconds=wish.good_for * tick_s),
        enqueue_delay_seconds=wish.delay * tick_s,
        task_options=json.dumps(options),
        flags="{}",
        max_retries=wish.retries,
        idempotency_key=None,
        command_sha=None,
        enqueue_sha="0" * 64,
    )
