-- The nodes that depend on a node, by index: an advance reads these and not the whole run. NULL in runs that were stored
-- before: their advances read all nodes.

ALTER TABLE horsies_workflow_tasks ADD COLUMN dependents integer[];
