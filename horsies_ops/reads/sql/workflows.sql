-- name: list
-- The next runs after $1, newest first, with the number of nodes by status.
SELECT w.id, w.name, w.status, w.definition_key, w.on_error, w.generation, w.parent_workflow_id AS parent_id,
       w.root_workflow_id AS root_id, w.depth, w.created_at, w.started_at, w.paused_at, w.completed_at,
       w.error ->> 'error_code'::text AS error_code, nodes.total, nodes.done, nodes.failed, nodes.skipped,
       nodes.running,
       now() - w.created_at AS age
  FROM (SELECT *
          FROM horsies_workflows
         WHERE id < $1
           AND ($2::text[] IS NULL OR status = ANY ($2))
           AND ($3::text[] IS NULL OR name LIKE ANY ($3))
           AND (NOT $4::boolean OR parent_workflow_id IS NULL)
           AND ($5::uuid IS NULL OR parent_workflow_id = $5)
         ORDER BY id DESC
         LIMIT $6) AS w
 CROSS JOIN LATERAL (
       SELECT count(*)::integer                                      AS total,
              count(*) FILTER (WHERE node.status = 'COMPLETED')::integer AS done,
              count(*) FILTER (WHERE node.status = 'FAILED')::integer    AS failed,
              count(*) FILTER (WHERE node.status = 'SKIPPED')::integer   AS skipped,
              count(*) FILTER (WHERE node.status = 'RUNNING')::integer   AS running
         FROM horsies_workflow_tasks AS node
        WHERE node.workflow_id = w.id) AS nodes
 ORDER BY w.id DESC;

-- name: detail
SELECT w.id, w.name, w.status, w.definition_key, w.on_error, w.generation, w.parent_workflow_id AS parent_id,
       w.root_workflow_id AS root_id, w.depth, w.created_at, w.started_at, w.paused_at, w.completed_at,
       w.error ->> 'error_code'::text AS error_code, now() - w.created_at AS age, w.output_task_index AS output_index,
       w.result::text AS result_json, w.error::text AS error_json
  FROM horsies_workflows AS w
 WHERE w.id = $1;

-- name: nodes
SELECT task_index AS index, node_id, coalesce(sub_workflow_name, task_name) AS name, status, join_type AS join, min_success,
       allow_failed_deps, dependencies, task_id, is_subworkflow, sub_workflow_id, queue_name AS queue, priority,
       started_at, completed_at,
       coalesce(error ->> 'error_code'::text, result #>> '{err,error_code}'::text[]) AS error_code,
       coalesce(error ->> 'message'::text, result #>> '{err,message}'::text[])       AS error_message
  FROM horsies_workflow_tasks
 WHERE workflow_id = $1
 ORDER BY task_index;
