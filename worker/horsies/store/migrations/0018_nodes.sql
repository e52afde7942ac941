-- A node changes its status in place: no index contains a column that changes at every step, and pages have room for the
-- new version of a row. That a node is running is stored in its task only.

DROP INDEX horsies_workflow_tasks_status;
ALTER TABLE horsies_workflow_tasks SET (fillfactor = 60);
