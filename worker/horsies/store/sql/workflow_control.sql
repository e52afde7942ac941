-- name: lock_tree
-- Lock a run and all runs below it. A new run is only inserted under its parent's lock, so once a second call finds no
-- more runs the tree is complete.
WITH RECURSIVE tree AS (
    SELECT id FROM horsies_workflows WHERE id = $1
     UNION ALL
    SELECT sub_run.id FROM tree JOIN horsies_workflows AS sub_run ON sub_run.parent_workflow_id = tree.id
)
SELECT w.id, w.status, w.on_error, w.success_policy::text AS success_policy, w.output_task_index,
       ARRAY(SELECT o.task_id
               FROM horsies_workflow_outbox AS o
              WHERE o.workflow_id = w.id AND o.needs IS NULL) AS outbox_ids
  FROM horsies_workflows AS w
 WHERE w.id = ANY(ARRAY(SELECT id FROM tree))
 ORDER BY w.id
   FOR NO KEY UPDATE OF w;

-- name: pause_runs
-- Pause locked runs; run $2 because its node $3 failed. Tasks that have not started are cancelled and their nodes
-- become READY again; running tasks may finish but not restart. A task past its good_until expires, and its node ends
-- with that.
WITH paused AS (
    UPDATE horsies_workflows AS w
       SET status = 'PAUSED', paused_at = now(), updated_at = now(),
           error = CASE WHEN w.id = $2 THEN (SELECT n.error
                                               FROM horsies_workflow_tasks AS n
                                              WHERE n.workflow_id = w.id AND n.task_index = $3) ELSE w.error END
     WHERE w.id = ANY($1::uuid[])
    RETURNING w.id
), locked_nodes AS MATERIALIZED (
    SELECT n.id
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = ANY($1) AND n.status IN ('ENQUEUED', 'RUNNING')
     ORDER BY n.id
       FOR NO KEY UPDATE
), locked_tasks AS MATERIALIZED (
    SELECT t.id, t.status, t.status <> 'RUNNING' AND t.good_until <= now() AS is_overdue
      {{ unfinished_tasks_of($1) }}
), kept_running AS (
    UPDATE horsies_tasks AS t
       SET no_restart = 'paused', updated_at = now()
      FROM locked_tasks
     WHERE t.id = locked_tasks.id AND locked_tasks.status = 'RUNNING'
), withdrawn AS (
    UPDATE horsies_tasks AS t
       SET status = CASE WHEN locked_tasks.is_overdue THEN 'EXPIRED' ELSE 'CANCELLED' END,
           result = CASE WHEN locked_tasks.is_overdue THEN $5 ELSE $4 END::text::jsonb,
           error_code = CASE WHEN locked_tasks.is_overdue THEN 'TASK_EXPIRED' ELSE 'TASK_CANCELLED' END,
           claimed = false, claim_expires_at = NULL, terminal_at = now(), updated_at = now()
      FROM locked_tasks
     WHERE t.id = locked_tasks.id AND locked_tasks.status <> 'RUNNING'
    RETURNING t.id, t.status, t.workflow_id, t.workflow_task_index
), reset_nodes AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = 'READY', task_id = NULL
      FROM withdrawn
     WHERE n.task_id = withdrawn.id AND withdrawn.status = 'CANCELLED' AND n.status IN ('ENQUEUED', 'RUNNING')
), expired_outbox AS (
    {{ insert_outbox(withdrawn WHERE status = 'EXPIRED') }}
)
SELECT count(*) AS messages
  FROM (SELECT 'horsies_workflow_done', id::text FROM paused
         UNION ALL
        {{ task_done_messages(withdrawn) }}) AS message(channel, payload)
 CROSS JOIN LATERAL pg_notify(message.channel, message.payload);

-- name: resume_runs
-- Set locked paused runs RUNNING again, or with $2 runs that had ended; their running tasks may restart again. The
-- error of a run is kept while one of its nodes has failed.
WITH runs AS (
    UPDATE horsies_workflows AS w
       SET status = 'RUNNING', paused_at = NULL, updated_at = now(),
           completed_at = NULL, result = NULL, generation = w.generation + $2::boolean::integer,
           error = CASE WHEN NOT $2 AND EXISTS (SELECT
                                                  FROM horsies_workflow_tasks AS n
                                                 WHERE n.workflow_id = w.id AND n.status = 'FAILED') THEN w.error END
     WHERE w.id = ANY($1::uuid[])
), locked_tasks AS MATERIALIZED (
    SELECT t.id
      FROM horsies_tasks AS t
     WHERE t.workflow_id = ANY($1) AND t.status = 'RUNNING' AND t.no_restart IS NOT NULL
     ORDER BY t.id
       FOR NO KEY UPDATE
)
UPDATE horsies_tasks AS t SET no_restart = NULL, updated_at = now() FROM locked_tasks WHERE t.id = locked_tasks.id;

-- name: end_runs
-- End locked runs early with the status and error given; nothing of them starts after this. Running tasks may finish,
-- unless $6 is set: then they are cancelled and their owners are asked to kill them.
WITH ended AS (
    -- The error of a node that failed before is kept.
    UPDATE horsies_workflows AS w
       SET status = $2, error = coalesce(w.error, $3::text::jsonb), completed_at = now(), updated_at = now()
     WHERE w.id = ANY($1::uuid[])
    RETURNING w.id, w.parent_workflow_id AS workflow_id, w.parent_task_index AS workflow_task_index
), locked_nodes AS MATERIALIZED (
    SELECT n.id
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = ANY($1) AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
     ORDER BY n.id
       FOR NO KEY UPDATE
), locked_tasks AS MATERIALIZED (
    SELECT t.id, t.status, t.claimed_by_worker_id, t.status <> 'RUNNING' OR $6::boolean AS is_withdrawn,
           t.status <> 'RUNNING' AND t.good_until <= now() AS is_overdue
      {{ unfinished_tasks_of($1) }}
), kept_running AS (
    UPDATE horsies_tasks AS t
       SET no_restart = 'cancelled', updated_at = now()
      FROM locked_tasks
     WHERE t.id = locked_tasks.id AND NOT locked_tasks.is_withdrawn
), withdrawn AS (
    UPDATE horsies_tasks AS t
       SET status = CASE WHEN locked_tasks.is_overdue THEN 'EXPIRED' ELSE 'CANCELLED' END,
           result = CASE WHEN locked_tasks.is_overdue THEN $5 ELSE $4 END::text::jsonb,
           error_code = CASE WHEN locked_tasks.is_overdue THEN 'TASK_EXPIRED' ELSE 'TASK_CANCELLED' END,
           attempts = t.attempts + (locked_tasks.status = 'RUNNING')::integer,
           kill_requested = locked_tasks.status = 'RUNNING',
           claimed = false, claim_expires_at = NULL, terminal_at = now(), updated_at = now()
      FROM locked_tasks
     WHERE t.id = locked_tasks.id AND locked_tasks.is_withdrawn
    RETURNING t.id, t.status, t.attempts AS attempt, t.claim_token, 'FAILED' AS outcome, t.started_at, t.error_code,
              t.result -> 'err'::text ->> 'message'::text AS error_message, NULL AS failed_reason,
              t.claimed_by_worker_id AS worker_id, t.worker_hostname, t.worker_pid, t.worker_process_name,
              t.kill_requested
), attempt AS (
    {{ insert_attempts(withdrawn WHERE kill_requested) }}
), skipped AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = 'SKIPPED', error = $3::text::jsonb
      FROM locked_nodes
     WHERE n.id = locked_nodes.id
       -- Others have a task or sub-workflow that is running or has ended; they take its outcome.
       AND (n.status IN ('PENDING', 'READY') OR n.task_id IN (SELECT id FROM withdrawn)
            OR n.status = 'ENQUEUED' AND NOT EXISTS (SELECT FROM horsies_tasks AS t WHERE t.id = n.task_id))
), parent_outbox AS (
    {{ insert_outbox(ended WHERE workflow_id IS NOT NULL) }}
), deleted_outbox AS (
    DELETE FROM horsies_workflow_outbox WHERE workflow_id = ANY($1) AND needs IS NOT NULL
)
SELECT count(*) AS messages
  FROM (SELECT 'horsies_workflow_done', id::text FROM ended
         UNION ALL
        SELECT 'horsies_workflow_due', id::text FROM ended WHERE workflow_id IS NOT NULL
         UNION ALL
        {{ task_done_messages(withdrawn) }}
         UNION ALL
        SELECT DISTINCT 'horsies_worker_ping',
               pg_catalog.jsonb_build_object('kind', 'kill', 'target_worker_id', worker_id)::text
          FROM withdrawn
         WHERE kill_requested) AS message(channel, payload)
 CROSS JOIN LATERAL pg_notify(message.channel, message.payload);

-- name: retryable_runs
-- The failed runs of a tree that a retry has to restart, from the root down along failed nodes. Returns no row if the
-- run does not exist.
WITH RECURSIVE tree AS (
    SELECT w.id, w.status FROM horsies_workflows AS w WHERE w.id = $1
     UNION ALL
    SELECT sub_run.id, sub_run.status
      FROM tree
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = tree.id AND n.status = 'FAILED'
      JOIN horsies_workflows AS sub_run ON sub_run.id = n.sub_workflow_id
                                     AND sub_run.status || '' IN ('FAILED', 'CANCELLED', 'EXPIRED')
)
SELECT tree.id,
       (SELECT count(*)
          FROM horsies_workflow_tasks AS n
         WHERE n.workflow_id = tree.id AND n.status IN ('FAILED', 'SKIPPED')) AS retryable_nodes
  FROM tree;

-- name: reset_nodes
-- Reset nodes that failed or were skipped; a node whose sub-workflow is restarted too stays linked to it. A good_until
-- that has passed is removed: the retry was requested after it.
WITH locked AS MATERIALIZED (
    SELECT n.id, n.task_id, n.sub_workflow_id = ANY($1::uuid[]) AS keeps_sub_workflow
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = ANY($1) AND n.status IN ('FAILED', 'SKIPPED')
     ORDER BY n.id
       FOR NO KEY UPDATE
)
UPDATE horsies_workflow_tasks AS n
   SET status = CASE WHEN locked.keeps_sub_workflow THEN 'RUNNING' ELSE 'PENDING' END,
       sub_workflow_id = CASE WHEN locked.keeps_sub_workflow THEN n.sub_workflow_id END,
       started_at = CASE WHEN locked.keeps_sub_workflow THEN n.started_at END,
       good_until = CASE WHEN n.good_until > now() THEN n.good_until END,
       task_id = NULL, result = NULL, error = NULL, sub_workflow_summary = NULL, completed_at = NULL
  FROM locked
 WHERE n.id = locked.id
RETURNING n.workflow_id, n.node_id, locked.task_id;

-- name: is_root
SELECT parent_workflow_id IS NULL FROM horsies_workflows WHERE id = $1;

-- name: long_paused
SELECT id
  FROM horsies_workflows
 WHERE status = 'PAUSED' AND paused_at <= now() - pg_catalog.make_interval(secs => $1)
 ORDER BY paused_at
 LIMIT $2;

-- name: stuck_runs
-- Runs in which something is due without a recent outbox entry, each with its case, at most $1 of each case. Runs whose
-- advance failed are left out until their next try. NOT IN is executed as a hashed subplan, and a lateral join with
-- LIMIT looks up each row by primary key, so this stays fast even if it was planned on empty tables.
WITH backing_off AS MATERIALIZED (
    SELECT workflow_id
      FROM horsies_workflow_outbox
     WHERE needs IS NULL AND (quarantined_at IS NOT NULL OR retry_at > now())
), running AS MATERIALIZED (
    SELECT w.id
      FROM horsies_workflows AS w
     WHERE w.status = 'RUNNING' AND w.id NOT IN (SELECT workflow_id FROM backing_off)
), recent_outbox AS (
    -- Not stuck: the outbox processor is about to handle them.
    SELECT task_id FROM horsies_workflow_outbox WHERE created_at > now() - interval '10 seconds'
), due_nodes AS (
    SELECT DISTINCT n.workflow_id
      FROM running
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = running.id AND n.status = 'PENDING'
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE d.status = 'COMPLETED') AS completed,
                  count(*) FILTER (WHERE d.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS unfinished,
                  count(*) FILTER (WHERE d.node_id = ANY(n.workflow_ctx_from)
                                     AND d.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS unfinished_context
             FROM horsies_workflow_tasks AS d
            WHERE d.workflow_id = n.workflow_id AND d.task_index = ANY(n.dependencies)) AS dependency
     WHERE CASE n.join_type
           WHEN 'all' THEN dependency.unfinished = 0
           WHEN 'any' THEN dependency.unfinished = 0 OR (dependency.completed > 0 AND dependency.unfinished_context = 0)
           -- quorum: out of reach, or reached with the context complete
           ELSE dependency.completed + dependency.unfinished < n.min_success
                OR (dependency.completed >= n.min_success AND dependency.unfinished_context = 0) END
     LIMIT $1
), unstarted_nodes AS (
    SELECT DISTINCT n.workflow_id, n.is_subworkflow
      FROM running
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = running.id AND n.status = 'READY'
     WHERE NOT n.is_subworkflow OR NOT EXISTS (SELECT FROM horsies_workflow_outbox AS o WHERE o.task_id = n.id)
     LIMIT $1
), active_nodes AS MATERIALIZED (
    SELECT n.workflow_id, n.status, n.task_id, n.sub_workflow_id
      FROM running
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = running.id AND n.status IN ('ENQUEUED', 'RUNNING')
), ended_sub_workflows AS (
    SELECT DISTINCT n.workflow_id
      FROM active_nodes AS n
     CROSS JOIN LATERAL (
           SELECT w.id, w.status FROM horsies_workflows AS w WHERE w.id = n.sub_workflow_id LIMIT 1) AS sub_run
     WHERE n.status = 'RUNNING' AND sub_run.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND sub_run.id NOT IN (SELECT task_id FROM recent_outbox)
     LIMIT $1
), ended_tasks AS (
    SELECT DISTINCT n.workflow_id
      FROM active_nodes AS n
     CROSS JOIN LATERAL (SELECT t.id, t.status FROM horsies_tasks AS t WHERE t.id = n.task_id LIMIT 1) AS task
     WHERE task.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND task.id NOT IN (SELECT task_id FROM recent_outbox)
     LIMIT $1
), missing_tasks AS (
    SELECT DISTINCT n.workflow_id
      FROM active_nodes AS n
     WHERE n.sub_workflow_id IS NULL AND NOT EXISTS (SELECT FROM horsies_tasks AS t WHERE t.id = n.task_id)
     LIMIT $1
), finished_runs AS (
    SELECT running.id AS workflow_id,
           EXISTS (SELECT FROM horsies_workflow_tasks AS n WHERE n.workflow_id = running.id) AS has_nodes
      FROM running
     WHERE NOT EXISTS (SELECT
                         FROM horsies_workflow_tasks AS n
                        WHERE n.workflow_id = running.id AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))
     LIMIT $1
)
-- Cases: 0 a node is due, 1 a READY node has no task, 1.5 a sub-workflow was not started, 1.6 a sub-workflow has ended,
-- 1.7 a task has ended or was deleted, 2 all nodes have ended, 3 the run has no nodes; 4 is an orphaned task (below).
SELECT workflow_id, "case", NULL::uuid AS task_id
  FROM (SELECT workflow_id, '0' FROM due_nodes
         UNION ALL
        SELECT workflow_id, CASE WHEN is_subworkflow THEN '1.5' ELSE '1' END FROM unstarted_nodes
         UNION ALL
        SELECT workflow_id, '1.6' FROM ended_sub_workflows
         UNION ALL
        SELECT workflow_id, '1.7' FROM ended_tasks
         UNION ALL
        SELECT workflow_id, '1.7' FROM missing_tasks
         UNION ALL
        SELECT workflow_id, CASE WHEN has_nodes THEN '2' ELSE '3' END FROM finished_runs) AS stuck(workflow_id, "case");

-- name: orphaned_tasks
-- Unstarted workflow tasks whose node is gone, has ended or has another task.
SELECT t.workflow_id, '4' AS "case", t.id AS task_id
  FROM horsies_tasks AS t
 WHERE t.status IN ('PENDING', 'CLAIMED') AND t.is_workflow_task
   AND NOT EXISTS (SELECT
                     FROM horsies_workflow_tasks AS n
                    WHERE n.task_id = t.id AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))
 LIMIT $1;

-- name: cancel_orphaned_tasks
WITH locked AS (
    SELECT t.id
      FROM horsies_tasks AS t
     WHERE t.id = ANY($1::uuid[]) AND t.status IN ('PENDING', 'CLAIMED')
     ORDER BY t.id
       FOR NO KEY UPDATE
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'CANCELLED', result = $2::text::jsonb, error_code = 'TASK_CANCELLED', claimed = false,
           claim_expires_at = NULL, terminal_at = now(), updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.workflow_id
), notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM ({{ task_done_messages(ended) }}) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT workflow_id, '4' AS "case", id AS task_id FROM ended WHERE (SELECT messages FROM notified) >= 0;

-- name: request_advance
-- Insert an outbox entry for a run that has none. Its random key cannot collide with that of a task, and its index, of no
-- node, makes the advance read the whole run.
INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
SELECT gen_random_uuid(), $1, -1
 WHERE NOT EXISTS (SELECT FROM horsies_workflow_outbox WHERE workflow_id = $1 AND needs IS NULL);

-- name: set_lock_timeout
-- Limit lock waits for the rest of this transaction.
SELECT FROM set_config('lock_timeout', $1, true);

-- name: release_quarantined
-- Release entries after one hour in quarantine, and delete entries whose run is gone.
WITH deleted AS (
    DELETE FROM horsies_workflow_outbox AS o
     WHERE NOT EXISTS (SELECT FROM horsies_workflows AS w WHERE w.id = o.workflow_id)
)
UPDATE horsies_workflow_outbox
   SET quarantined_at = NULL, retry_at = now()
 WHERE quarantined_at <= now() - interval '1 hour';
