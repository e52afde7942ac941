"""Operator actions: select tasks, preview the effect, apply it in batches and record it in the audit log."""
