"""The producer side: sends tasks, waits for results and queries workers; does not run tasks."""
