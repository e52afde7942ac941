-- name: outcomes
-- How runs stand, with what they ended with; `output_name` is the task that made it, where one did.
SELECT w.id, w.status, w.result::text AS document, w.error::text AS error, w.output_task_index IS NULL AS is_map,
       (SELECT n.task_name
          FROM horsies_workflow_tasks AS n
         WHERE n.workflow_id = w.id AND n.task_index = w.output_task_index AND NOT n.is_subworkflow) AS output_name
  FROM horsies_workflows AS w
 WHERE w.id = ANY($1::uuid[]);

-- name: nodes
SELECT node_id, task_index, task_name, status, task_id, is_subworkflow, sub_workflow_id, result::text AS document,
       started_at, completed_at
  FROM horsies_workflow_tasks
 WHERE workflow_id = $1
 ORDER BY task_index;
