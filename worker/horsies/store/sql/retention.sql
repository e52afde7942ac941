-- name: try_retention_lock
-- Lets one process delete at a time, to save work; every statement below is also correct without the lock. The
-- heartbeat cleanup of the reaper uses another lock name, so that it never blocks a full retention pass.
SELECT pg_try_advisory_xact_lock(horsies_lock_key($1)) AS is_acquired;

-- name: sizes
-- Size and estimated row count of our tables.
SELECT relation.relname::text                   AS table_name,
       pg_catalog.pg_total_relation_size(relation.oid)     AS bytes,
       -- Both estimates lag; take the larger one.
       greatest(relation.reltuples::bigint, pg_stat_get_live_tuples(relation.oid), 0) AS rows_estimate
  FROM pg_class AS relation
 WHERE relation.relnamespace = current_schema()::regnamespace::oid
   AND relation.relkind = 'r'
   AND starts_with(relation.relname::text, 'horsies_');

-- name: delete_heartbeats
-- The view leaves out the newest heartbeat of a task in flight, however old: recovery decides by it.
{{ delete_old(horsies_heartbeats, horsies_spent_heartbeats, sent_at) }};

-- name: count_due_heartbeats
{{ count_old(horsies_heartbeats, horsies_spent_heartbeats, sent_at) }};

-- name: delete_worker_states
{{ delete_old(horsies_worker_states, horsies_worker_states, snapshot_at) }};

-- name: count_due_worker_states
{{ count_old(horsies_worker_states, horsies_worker_states, snapshot_at) }};

-- name: delete_workers
-- The view leaves out workers that still own tasks: recovery needs their rows as evidence.
WITH ended AS (
    SELECT worker.id, worker.ended_at
      FROM horsies_ended_workers AS worker
     WHERE worker.ended_at < now() - $1::interval
     ORDER BY worker.id
     LIMIT $2
       FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM horsies_workers WHERE id = ANY(ARRAY(SELECT id FROM ended)) RETURNING id
)
SELECT 'horsies_workers' AS table_name, count(*) AS rows, min(ended.ended_at) AS oldest_at
  FROM deleted
  JOIN ended USING (id);

-- name: count_due_workers
{{ count_old(horsies_workers, horsies_ended_workers, ended_at) }};

-- name: delete_tasks
-- A task is deleted together with its attempts. The view leaves out tasks of a workflow run that still exists: they are
-- deleted with its tree. A locked task is in use, for example by a resend, and is left for the next batch.
WITH ended AS (
    SELECT task.id
      FROM horsies_ended_tasks AS task
     WHERE task.terminal_at < now() - $1::interval
     ORDER BY task.terminal_at
     LIMIT $2
       FOR UPDATE SKIP LOCKED
), task AS (
    DELETE FROM horsies_tasks WHERE id = ANY(ARRAY(SELECT id FROM ended)) RETURNING terminal_at
), attempt AS (
    DELETE FROM horsies_task_attempts WHERE task_id = ANY(ARRAY(SELECT id FROM ended)) RETURNING finished_at
)
SELECT 'horsies_tasks' AS table_name, count(*) AS rows, min(terminal_at) AS oldest_at FROM task
 UNION ALL
SELECT 'horsies_task_attempts', count(*), min(finished_at) FROM attempt;

-- name: count_due_tasks
WITH ended AS MATERIALIZED (
    SELECT id, terminal_at FROM horsies_ended_tasks WHERE terminal_at < now() - $1::interval
)
SELECT 'horsies_tasks' AS table_name, count(*) AS rows, min(terminal_at) AS oldest_at FROM ended
 UNION ALL
SELECT 'horsies_task_attempts', count(*), min(attempt.finished_at)
  FROM horsies_task_attempts AS attempt
 WHERE attempt.task_id IN (SELECT id FROM ended);

-- name: lock_run_trees
-- Lock the oldest finished run trees: as many as have $2 nodes in total, and at least one. A retry of a run takes the
-- same locks, so `delete_run_trees` must check again which trees are still finished.
WITH ended AS (
    SELECT tree.id, tree.completed_at,
           (SELECT count(*)
              FROM horsies_workflows AS run
              JOIN horsies_workflow_tasks AS node ON node.workflow_id = run.id
             WHERE run.root_workflow_id = tree.id) AS nodes
      FROM horsies_ended_trees AS tree
     WHERE tree.completed_at < now() - $1::interval
     ORDER BY tree.completed_at, tree.id
     LIMIT $2
), counted AS (
    SELECT id, (sum(nodes) OVER (ORDER BY completed_at, id))::bigint - nodes AS nodes_before FROM ended
)
SELECT run.root_workflow_id AS root_id
  FROM horsies_workflows AS run
 WHERE run.root_workflow_id = ANY(ARRAY(SELECT id FROM counted WHERE nodes_before < $2))
 ORDER BY run.id
   FOR UPDATE;

-- name: delete_run_trees
-- Delete the locked trees that are still finished, each as a whole.
WITH run AS (
    DELETE FROM horsies_workflows
     WHERE root_workflow_id = ANY(ARRAY(SELECT tree.id
                                          FROM horsies_ended_trees AS tree
                                         WHERE tree.id = ANY($2::uuid[]) AND tree.completed_at < now() - $1::interval))
    RETURNING id, completed_at
), node AS (
    DELETE FROM horsies_workflow_tasks WHERE workflow_id = ANY(ARRAY(SELECT id FROM run)) RETURNING completed_at
), outbox AS (
    DELETE FROM horsies_workflow_outbox WHERE workflow_id = ANY(ARRAY(SELECT id FROM run)) RETURNING created_at
), task AS (
    DELETE FROM horsies_tasks WHERE workflow_id = ANY(ARRAY(SELECT id FROM run)) RETURNING id, terminal_at
), attempt AS (
    DELETE FROM horsies_task_attempts WHERE task_id = ANY(ARRAY(SELECT id FROM task)) RETURNING finished_at
)
SELECT 'horsies_workflows' AS table_name, count(*) AS rows, min(completed_at) AS oldest_at FROM run
 UNION ALL
SELECT 'horsies_workflow_tasks', count(*), min(completed_at) FROM node
 UNION ALL
SELECT 'horsies_workflow_outbox', count(*), min(created_at) FROM outbox
 UNION ALL
SELECT 'horsies_tasks', count(*), min(terminal_at) FROM task
 UNION ALL
SELECT 'horsies_task_attempts', count(*), min(finished_at) FROM attempt;

-- name: count_due_run_trees
WITH run AS MATERIALIZED (
    SELECT run.id, run.completed_at
      FROM horsies_ended_trees AS tree
      JOIN horsies_workflows AS run ON run.root_workflow_id = tree.id
     WHERE tree.completed_at < now() - $1::interval
), task AS MATERIALIZED (
    SELECT task.id, task.terminal_at FROM run JOIN horsies_tasks AS task ON task.workflow_id = run.id
)
SELECT 'horsies_workflows' AS table_name, count(*) AS rows, min(completed_at) AS oldest_at FROM run
 UNION ALL
SELECT 'horsies_workflow_tasks', count(*), min(node.completed_at)
  FROM run
  JOIN horsies_workflow_tasks AS node ON node.workflow_id = run.id
 UNION ALL
SELECT 'horsies_workflow_outbox', count(*), min(outbox.created_at)
  FROM run
  JOIN horsies_workflow_outbox AS outbox ON outbox.workflow_id = run.id
 UNION ALL
SELECT 'horsies_tasks', count(*), min(terminal_at) FROM task
 UNION ALL
SELECT 'horsies_task_attempts', count(*), min(attempt.finished_at)
  FROM task
  JOIN horsies_task_attempts AS attempt ON attempt.task_id = task.id;

-- name: delete_events
{{ delete_old(horsies_events, horsies_events, at) }};

-- name: count_due_events
{{ count_old(horsies_events, horsies_events, at) }};

-- name: delete_audit_entries
-- The view leaves out entries that no cleanup may delete yet.
{{ delete_old(horsies_audit, horsies_old_audit, at) }};

-- name: count_due_audit_entries
{{ count_old(horsies_audit, horsies_old_audit, at) }};

-- name: delete_schedule_runs
-- The view leaves out the newest runs of each schedule.
{{ delete_old(horsies_schedule_runs, horsies_spent_schedule_runs, slot_at) }};

-- name: count_due_schedule_runs
{{ count_old(horsies_schedule_runs, horsies_spent_schedule_runs, slot_at) }};
