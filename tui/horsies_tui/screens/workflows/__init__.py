"""Workflow runs: their list, their graph and their panes."""
