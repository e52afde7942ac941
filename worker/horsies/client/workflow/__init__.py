"""Defining workflows: nodes, specs, class definitions and their validation; handles of runs."""
