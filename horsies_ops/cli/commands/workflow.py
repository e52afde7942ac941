"""`horsies workflow`: runs of workflows, listed, drawn, paused, resumed, cancelled and retried."""

from __future__ import annotations

from horsies_ops.cli.session import group
from horsies_ops.cli.workflow_actions import add_actions
from horsies_ops.cli.workflow_reads import add_reads

app = group("workflow")

add_reads(app)
add_actions(app)
