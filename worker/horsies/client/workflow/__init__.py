"""Writing workflows: nodes, specs and definitions, checked until nothing is left to go wrong but the tasks."""
