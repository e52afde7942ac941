-- name: run_results
-- How runs stand, with what they ended with; `output_name` is the task that made it, or `output_definition_key` the
-- sub-workflow.
SELECT w.id, w.status, w.result::text AS document, w.error::text AS error, w.output_task_index IS NULL AS is_map,
       CASE WHEN NOT n.is_subworkflow THEN n.task_name END AS output_name,
       n.sub_definition_key AS output_definition_key
  FROM horsies_workflows AS w
  LEFT JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id AND n.task_index = w.output_task_index
 WHERE w.id = ANY($1::uuid[]);

-- name: node_infos
SELECT node_id, task_index, task_name, status, task_id, is_subworkflow, sub_definition_key AS definition_key,
       sub_workflow_id, result::text AS document, started_at, completed_at
  FROM horsies_workflow_tasks
 WHERE workflow_id = $1
 ORDER BY task_index;
