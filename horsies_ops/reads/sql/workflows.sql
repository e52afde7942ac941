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
              -- A node stays ENQUEUED while its task is running.
              count(*) FILTER (WHERE node.status = 'RUNNING' OR task.id IS NOT NULL)::integer AS running
         FROM horsies_workflow_tasks AS node
         LEFT JOIN horsies_tasks AS task
           ON task.id = node.task_id AND node.status = 'ENQUEUED' AND task.status = 'RUNNING'
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
-- A node stays ENQUEUED while its task is running.
SELECT node.task_index AS index, node.node_id, coalesce(node.sub_workflow_name, node.task_name) AS name,
       coalesce(task.status, node.status) AS status, node.join_type AS join, node.min_success, node.allow_failed_deps,
       node.dependencies, node.task_id, node.is_subworkflow, node.sub_workflow_id, node.queue_name AS queue,
       node.priority, coalesce(node.started_at, task.started_at) AS started_at, node.completed_at,
       coalesce(node.error ->> 'error_code'::text, node.result #>> '{err,error_code}'::text[]) AS error_code,
       coalesce(node.error ->> 'message'::text, node.result #>> '{err,message}'::text[])       AS error_message
  FROM horsies_workflow_tasks AS node
  LEFT JOIN horsies_tasks AS task
    ON task.id = node.task_id AND node.status = 'ENQUEUED' AND task.status = 'RUNNING'
 WHERE node.workflow_id = $1
 ORDER BY node.task_index;
