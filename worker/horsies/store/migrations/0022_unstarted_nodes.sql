-- At each check interval the reaper looks for unstarted workflow tasks whose node is gone. Without an index of their own
-- it reads all tasks.
CREATE INDEX horsies_tasks_unstarted_nodes ON horsies_tasks (id)
 WHERE is_workflow_task AND status IN ('PENDING', 'CLAIMED');
