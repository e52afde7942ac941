"""`horsies workflow`: runs of workflows, paused, resumed, cancelled and retried."""

from __future__ import annotations

from horsies_ops.cli.session import group
from horsies_ops.cli.workflow_actions import add_actions

app = group("workflow")

add_actions(app)
