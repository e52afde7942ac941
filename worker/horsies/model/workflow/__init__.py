"""Workflow values and rules: plans, statuses, next steps and public views."""
