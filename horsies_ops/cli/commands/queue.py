"""`horsies queue`: queues, paused and resumed."""

from __future__ import annotations

from horsies_ops.cli.queue_actions import add_actions
from horsies_ops.cli.session import group

app = group("queue")

add_actions(app)
