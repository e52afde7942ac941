-- Failed tasks by the time they failed: they are counted exactly, however many tasks completed at the same time.
CREATE INDEX horsies_tasks_failed ON horsies_tasks (terminal_at, queue_name) WHERE status = 'FAILED';
