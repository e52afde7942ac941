-- name: lock_tree
-- Lock a run and all runs below it. Whoever adds a run holds its parent's lock, so when a second look finds no more, there
-- are no more.
WITH RECURSIVE tree AS (
    SELECT id FROM horsies_workflows WHERE id = $1
     UNION ALL
    SELECT child.id FROM tree JOIN horsies_workflows AS child ON child.parent_workflow_id = tree.id
)
SELECT w.id, w.status, w.on_error, w.success_policy::text AS success_policy, w.output_task_index,
       ARRAY(SELECT o.task_id
               FROM horsies_workflow_outbox AS o
              WHERE o.workflow_id = w.id AND o.needs IS NULL) AS asked
  FROM horsies_workflows AS w
 WHERE w.id = ANY(ARRAY(SELECT id FROM tree))
 ORDER BY w.id
   FOR NO KEY UPDATE OF w;

-- name: pause_runs
-- Pause runs that are locked, $2 because of one of its nodes: what has not begun is taken back and its nodes wait for
-- another task, what runs may end but not start again. An expired task stays what its node ends with.
WITH paused AS (
    UPDATE horsies_workflows AS w
       SET status = 'PAUSED', paused_at = now(), updated_at = now(),
           error = CASE WHEN w.id = $2 THEN (SELECT n.error
                                               FROM horsies_workflow_tasks AS n
                                              WHERE n.workflow_id = w.id AND n.task_index = $3) ELSE w.error END
     WHERE w.id = ANY($1::uuid[])
    RETURNING w.id
), nodes AS MATERIALIZED (
    SELECT n.id
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = ANY($1) AND n.status IN ('ENQUEUED', 'RUNNING')
     ORDER BY n.id
       FOR NO KEY UPDATE
), held AS MATERIALIZED (
    SELECT t.id, t.status, t.status <> 'RUNNING' AND t.good_until <= now() AS is_late
      FROM horsies_tasks AS t
     WHERE t.workflow_id = ANY($1) AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING')
       AND (SELECT count(*) FROM nodes) >= 0
     ORDER BY t.id
       FOR NO KEY UPDATE
), marked AS (
    UPDATE horsies_tasks AS t
       SET no_restart = 'paused', updated_at = now()
      FROM held
     WHERE t.id = held.id AND held.status = 'RUNNING'
), taken AS (
    UPDATE horsies_tasks AS t
       SET status = CASE WHEN held.is_late THEN 'EXPIRED' ELSE 'CANCELLED' END,
           result = CASE WHEN held.is_late THEN $5 ELSE $4 END::text::jsonb,
           error_code = CASE WHEN held.is_late THEN 'TASK_EXPIRED' ELSE 'TASK_CANCELLED' END,
           claimed = false, claim_expires_at = NULL, terminal_at = now(), updated_at = now()
      FROM held
     WHERE t.id = held.id AND held.status <> 'RUNNING'
    RETURNING t.id, t.status, t.workflow_id, t.workflow_task_index
), waiting AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = 'READY', task_id = NULL
      FROM taken
     WHERE n.task_id = taken.id AND taken.status = 'CANCELLED' AND n.status IN ('ENQUEUED', 'RUNNING')
), late AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM taken WHERE status = 'EXPIRED'
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS messages
  FROM (SELECT 'horsies_workflow_done', id::text FROM paused
         UNION ALL
        SELECT 'horsies_task_done', string_agg(id::text, ',')
          FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM taken) AS numbered
         GROUP BY part) AS message(channel, payload)
 CROSS JOIN LATERAL pg_notify(message.channel, message.payload);

-- name: resume_runs
-- Paused runs that are locked, or with $2 runs that had ended, are RUNNING again: what still runs may start again. An
-- error stays while a node of the run has failed.
WITH runs AS (
    UPDATE horsies_workflows AS w
       SET status = 'RUNNING', paused_at = NULL, updated_at = now(),
           completed_at = NULL, result = NULL, generation = w.generation + $2::boolean::integer,
           error = CASE WHEN NOT $2 AND EXISTS (SELECT
                                                  FROM horsies_workflow_tasks AS n
                                                 WHERE n.workflow_id = w.id AND n.status = 'FAILED') THEN w.error END
     WHERE w.id = ANY($1::uuid[])
), nodes AS MATERIALIZED (
    SELECT n.id
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = ANY($1) AND n.status = 'RUNNING'
     ORDER BY n.id
       FOR NO KEY UPDATE
), held AS MATERIALIZED (
    SELECT t.id
      FROM horsies_tasks AS t
     WHERE t.workflow_id = ANY($1) AND t.status = 'RUNNING' AND t.no_restart IS NOT NULL
       AND (SELECT count(*) FROM nodes) >= 0
     ORDER BY t.id
       FOR NO KEY UPDATE
)
UPDATE horsies_tasks AS t SET no_restart = NULL, updated_at = now() FROM held WHERE t.id = held.id;

-- name: end_runs
-- Runs that are locked end before their nodes do, with the status and the error given: nothing of them starts any more.
-- What runs may end, unless $6 says that it is to be killed: then it is cancelled too, and its owner told.
WITH ended AS (
    UPDATE horsies_workflows AS w
       SET status = $2, error = coalesce(w.error, $3::text::jsonb), completed_at = now(), updated_at = now()
     WHERE w.id = ANY($1::uuid[])
    RETURNING w.id, w.parent_workflow_id, w.parent_task_index
), nodes AS MATERIALIZED (
    SELECT n.id
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = ANY($1) AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
     ORDER BY n.id
       FOR NO KEY UPDATE
), held AS MATERIALIZED (
    SELECT t.id, t.status, t.claimed_by_worker_id, t.status <> 'RUNNING' OR $6::boolean AS is_taken,
           t.status <> 'RUNNING' AND t.good_until <= now() AS is_late
      FROM horsies_tasks AS t
     WHERE t.workflow_id = ANY($1) AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING')
       AND (SELECT count(*) FROM nodes) >= 0
     ORDER BY t.id
       FOR NO KEY UPDATE
), marked AS (
    UPDATE horsies_tasks AS t
       SET no_restart = 'cancelled', updated_at = now()
      FROM held
     WHERE t.id = held.id AND NOT held.is_taken
), taken AS (
    UPDATE horsies_tasks AS t
       SET status = CASE WHEN held.is_late THEN 'EXPIRED' ELSE 'CANCELLED' END,
           result = CASE WHEN held.is_late THEN $5 ELSE $4 END::text::jsonb,
           error_code = CASE WHEN held.is_late THEN 'TASK_EXPIRED' ELSE 'TASK_CANCELLED' END,
           attempts = t.attempts + (held.status = 'RUNNING')::integer,
           kill_requested = held.status = 'RUNNING',
           claimed = false, claim_expires_at = NULL, terminal_at = now(), updated_at = now()
      FROM held
     WHERE t.id = held.id AND held.is_taken
    RETURNING t.*
), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, started_at, finished_at, error_code,
                                       error_message, worker_id, worker_hostname, worker_pid, worker_process_name)
    SELECT id, attempts, claim_token, 'FAILED', started_at, now(), error_code, result -> 'err' ->> 'message',
           claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name
      FROM taken
     WHERE kill_requested
), skipped AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = 'SKIPPED', error = $3::text::jsonb, completed_at = now()
      FROM nodes
     WHERE n.id = nodes.id
       AND (n.status IN ('PENDING', 'READY', 'ENQUEUED')
            OR n.status = 'RUNNING' AND n.task_id IN (SELECT id FROM taken))
), parents AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, parent_workflow_id, parent_task_index FROM ended WHERE parent_workflow_id IS NOT NULL
    ON CONFLICT DO NOTHING
), forgotten AS (
    DELETE FROM horsies_workflow_outbox WHERE workflow_id = ANY($1) AND needs IS NOT NULL
)
SELECT count(*) AS messages
  FROM (SELECT 'horsies_workflow_done', id::text FROM ended
         UNION ALL
        SELECT 'horsies_workflow_due', id::text FROM ended WHERE parent_workflow_id IS NOT NULL
         UNION ALL
        SELECT 'horsies_task_done', string_agg(id::text, ',')
          FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM taken) AS numbered
         GROUP BY part
         UNION ALL
        SELECT DISTINCT 'horsies_worker_ping',
               jsonb_build_object('kind', 'kill', 'target_worker_id', claimed_by_worker_id)::text
          FROM taken
         WHERE kill_requested) AS message(channel, payload)
 CROSS JOIN LATERAL pg_notify(message.channel, message.payload);

-- name: retryable_runs
-- The runs of a tree that have to go on if its failures are to be made good, from the root down: a failed node leads on
-- to the run behind it. No row back means that there is no such run.
WITH RECURSIVE tree AS (
    SELECT w.id, w.status FROM horsies_workflows AS w WHERE w.id = $1
     UNION ALL
    SELECT child.id, child.status
      FROM tree
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = tree.id AND n.status = 'FAILED'
      JOIN horsies_workflows AS child ON child.id = n.sub_workflow_id
                                     AND child.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
)
SELECT tree.id, tree.status,
       (SELECT count(*)
          FROM horsies_workflow_tasks AS n
         WHERE n.workflow_id = tree.id AND n.status IN ('FAILED', 'SKIPPED')) AS lost_nodes
  FROM tree;

-- name: reset_nodes
-- Nodes that failed or never ran are as they were at the start; one with a run behind it that goes on stands for it
-- again. Whoever asks for them now wants them in spite of a time that has passed.
WITH held AS MATERIALIZED (
    SELECT n.id, n.task_id, n.sub_workflow_id = ANY($1::uuid[]) AS has_child
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = ANY($1) AND n.status IN ('FAILED', 'SKIPPED')
     ORDER BY n.id
       FOR NO KEY UPDATE
)
UPDATE horsies_workflow_tasks AS n
   SET status = CASE WHEN held.has_child THEN 'RUNNING' ELSE 'PENDING' END,
       sub_workflow_id = CASE WHEN held.has_child THEN n.sub_workflow_id END,
       started_at = CASE WHEN held.has_child THEN n.started_at END,
       good_until = CASE WHEN n.good_until > now() THEN n.good_until END,
       task_id = NULL, result = NULL, error = NULL, sub_workflow_summary = NULL, completed_at = NULL
  FROM held
 WHERE n.id = held.id
RETURNING n.workflow_id, n.node_id, held.task_id;

-- name: run_status
SELECT id, status, parent_workflow_id IS NULL AS is_root FROM horsies_workflows WHERE id = $1;

-- name: long_paused
SELECT id
  FROM horsies_workflows
 WHERE status = 'PAUSED' AND paused_at <= now() - make_interval(secs => $1)
 ORDER BY paused_at
 LIMIT $2;
