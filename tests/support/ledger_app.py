"""The app of workers under test: tasks that write down when they begin and end, and small thresholds.

In the children of workers `app` is made of the environment. Tests make the same app with `ledger_app`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    RecoveryConfig,
    RetentionConfig,
    RetryPolicy,
    WorkerResilienceConfig,
)
from tests.support import ledger_deaths as deaths
from tests.support import ledger_tasks as tasks
from tests.support.ledger_pen import URL

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = "LEDGER_CONFIG"

QUICK_RECOVERY: dict[str, Any] = {
    "runner_heartbeat_interval_ms": 200,
    "claimer_heartbeat_interval_ms": 200,
    "claimed_stale_threshold_ms": 1_000,
    "running_stale_threshold_ms": 1_000,
    "worker_stale_threshold_ms": 1_000,
    "check_interval_ms": 300,
}
QUICK_RESILIENCE: dict[str, Any] = {
    "db_retry_initial_ms": 50,
    "db_retry_max_ms": 300,
    "notify_poll_interval_ms": 1_000,
}


def retried(*codes: str, times: int = 1) -> RetryPolicy:
    """So many retries, each a second later, after any of these codes."""
    return RetryPolicy.fixed([1] * times, auto_retry_for=list(codes), jitter=False)


INTERRUPTIONS = ("WORKER_CRASHED", "SHUTDOWN", "TASK_TIMEOUT")

TASKS: tuple[tuple[str, Callable[..., Any], dict[str, Any]], ...] = (
    ("work", tasks.work, {}),
    ("work_again", tasks.work, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("work_briefly", tasks.work, {"timeout_ms": 1_000}),
    ("work_briefly_again", tasks.work, {"timeout_ms": 1_000, "retry_policy": retried("TASK_TIMEOUT")}),
    ("plain", tasks.plain, {}),
    ("jot", tasks.jot, {}),
    ("wait_for", tasks.wait_for, {}),
    ("wait_for_again", tasks.wait_for, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("nap", tasks.nap, {}),
    ("nap_again", tasks.nap, {"retry_policy": retried(*INTERRUPTIONS)}),
    ("nap_briefly", tasks.nap, {"timeout_ms": 1_000}),
    ("hold_loop", tasks.hold_loop, {}),
    ("linger_briefly", tasks.linger, {"timeout_ms": 1_000}),
    ("refuse", tasks.refuse, {"retry_policy": retried("LISTED", times=2)}),
    (
        "stumble",
        tasks.stumble,
        {"retry_policy": RetryPolicy.exponential(1, max_retries=3, auto_retry_for=["STUMBLED"])},
    ),
    ("explode", tasks.explode, {}),
    ("explode_async", tasks.explode_async, {}),
    ("explode_mapped", tasks.explode, {"exception_mapper": {ValueError: "BAD_VALUE"}}),
    ("explode_oddly", tasks.explode_oddly, {"exception_mapper": {ValueError: "BAD_VALUE"}}),
    ("give_nothing", tasks.give_nothing, {}),
    ("mistype", tasks.mistype, {}),
    ("unencodable", tasks.unencodable, {}),
    ("segfault", deaths.segfault, {}),
    ("leave", deaths.leave, {}),
    ("kill_self", deaths.kill_self, {}),
    ("poison", deaths.kill_self, {"retry_policy": retried("WORKER_CRASHED", times=10)}),
    ("stop_self", deaths.stop_self, {}),
    ("stop_self_briefly", deaths.stop_self, {"timeout_ms": 1_000}),
    ("die_if", deaths.die_if, {}),
    ("exit_by_exception", deaths.exit_by_exception, {}),
    ("interrupt", deaths.interrupt, {}),
    ("eat_memory", deaths.eat_memory, {}),
    ("hang_up", deaths.hang_up, {}),
    ("burn", deaths.burn, {}),
    ("swallow", deaths.swallow, {"retry_policy": retried("WORKER_CRASHED", times=10)}),
    ("talk", tasks.talk, {}),
    ("who", tasks.who, {"timeout_ms": 30_000, "flags": ["vip"]}),
)


def ledger_app(url: str, **config: Any) -> Horsies:
    """An app with the tasks above and small thresholds; `recovery`, `retention` and `resilience` may be mappings."""
    recovery = RecoveryConfig.unchecked(**QUICK_RECOVERY | config.pop("recovery", {}))
    retention = RetentionConfig.unchecked(**config.pop("retention", {}))
    resilience = WorkerResilienceConfig.unchecked(**QUICK_RESILIENCE | config.pop("resilience", {}))
    broker = PostgresConfig(database_url=config.pop("database_url", url), **config.pop("broker", {}))
    app = Horsies(AppConfig(broker=broker, recovery=recovery, retention=retention, resilience=resilience, **config))
    queue = {} if "custom_queues" not in config else {"queue_name": config["custom_queues"][0]["name"]}
    for name, function, options in TASKS:
        app.task(name, **queue | options)(function)
    return app


if URL in os.environ:
    app = ledger_app(os.environ[URL], **json.loads(os.environ.get(CONFIG, "{}")))
