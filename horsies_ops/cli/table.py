"""Every command of `horsies` and its one line of help, in the order in which `horsies --help` shows them."""

from __future__ import annotations

from typing import Final

SERVICES: Final = frozenset({"worker", "metrics"})
"""Commands that run until they are stopped and tell what they do in their log."""

COMMANDS: Final = {
    "worker": "Run tasks until SIGTERM or SIGINT; a second signal ends the grace.",
    "tui": "Look at queues, tasks, workers and workflows as they change, and act on them.",
    "init": "Write a commented horsies.toml to start from.",
    "check": "Check an app and its tasks; all errors of the first phase that fails.",
    "config": "Show the settings and where each comes from, or check them.",
    "db": "Migrate and inspect the database; start and stop the embedded one.",
    "task": "List tasks, look at one, send one, or act on some: requeue, fail, cancel, expire, retry.",
    "queue": "List queues, pause them and resume them.",
    "workflow": "List runs of workflows, draw one, pause, resume, cancel or retry it.",
    "workers": "List workers, or see which of them answer.",
    "schedule": "List what starts by the clock.",
    "events": "Show what happened that an operator should know, and follow it.",
    "audit": "Show what operators did: who, why, what to, and how many it moved.",
    "sweep": "Settle work whose owner fell silent, or list it with --dry-run.",
    "cleanup": "Delete what is past its window, or count it with --dry-run.",
    "doctor": "Look at everything and say what to do; exit 1 when a check fails.",
    "demo": "Show the sample app at work on a database of its own, and a killed worker whose tasks are recovered.",
    "metrics": "Answer Prometheus until SIGTERM or SIGINT.",
}
