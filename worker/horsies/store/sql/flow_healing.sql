-- name: stuck_runs
-- Runs in which something is due that nobody has asked for of late, each with the case that it is of. So many of a case.
-- One that could not be advanced is left alone for as long as it is not to be tried again.
-- Whatever the tables held when this was planned, what is NOT IN a set is looked up in a hash of it, and what a lateral
-- join with a limit asks for is looked up by its key.
WITH aside AS MATERIALIZED (
    SELECT workflow_id
      FROM horsies_workflow_outbox
     WHERE needs IS NULL AND (quarantined_at IS NOT NULL OR retry_at > now())
), running AS MATERIALIZED (
    SELECT w.id
      FROM horsies_workflows AS w
     WHERE w.status = 'RUNNING' AND w.id NOT IN (SELECT workflow_id FROM aside)
), fresh AS (
    SELECT task_id FROM horsies_workflow_outbox WHERE created_at > now() - interval '10 seconds'
), decidable AS (
    SELECT DISTINCT n.workflow_id
      FROM running
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = running.id AND n.status = 'PENDING'
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE d.status = 'COMPLETED') AS completed,
                  count(*) FILTER (WHERE d.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS still_open,
                  count(*) FILTER (WHERE d.node_id = ANY(n.workflow_ctx_from)
                                     AND d.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS unread
             FROM horsies_workflow_tasks AS d
            WHERE d.workflow_id = n.workflow_id AND d.task_index = ANY(n.dependencies)) AS waits
     WHERE CASE n.join_type
           WHEN 'all' THEN waits.still_open = 0
           WHEN 'any' THEN waits.still_open = 0 OR (waits.completed > 0 AND waits.unread = 0)
           ELSE waits.completed + waits.still_open < n.min_success
                OR (waits.completed >= n.min_success AND waits.unread = 0) END
     LIMIT $1
), unstarted AS (
    SELECT DISTINCT n.workflow_id, n.is_subworkflow
      FROM running
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = running.id AND n.status = 'READY'
     WHERE NOT n.is_subworkflow OR NOT EXISTS (SELECT FROM horsies_workflow_outbox AS o WHERE o.task_id = n.id)
     LIMIT $1
), held AS MATERIALIZED (
    SELECT n.workflow_id, n.status, n.task_id, n.sub_workflow_id
      FROM running
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = running.id AND n.status IN ('ENQUEUED', 'RUNNING')
), untold AS (
    SELECT DISTINCT n.workflow_id
      FROM held AS n
     CROSS JOIN LATERAL (
           SELECT w.id, w.status FROM horsies_workflows AS w WHERE w.id = n.sub_workflow_id LIMIT 1) AS child
     WHERE n.status = 'RUNNING' AND child.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND child.id NOT IN (SELECT task_id FROM fresh)
     LIMIT $1
), ended AS (
    SELECT DISTINCT n.workflow_id
      FROM held AS n
     CROSS JOIN LATERAL (SELECT t.id, t.status FROM horsies_tasks AS t WHERE t.id = n.task_id LIMIT 1) AS task
     WHERE task.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND task.id NOT IN (SELECT task_id FROM fresh)
     LIMIT $1
), bereft AS (
    SELECT DISTINCT n.workflow_id
      FROM held AS n
     WHERE n.sub_workflow_id IS NULL AND NOT EXISTS (SELECT FROM horsies_tasks AS t WHERE t.id = n.task_id)
     LIMIT $1
), unclosed AS (
    SELECT running.id AS workflow_id,
           EXISTS (SELECT FROM horsies_workflow_tasks AS n WHERE n.workflow_id = running.id) AS has_nodes
      FROM running
     WHERE NOT EXISTS (SELECT
                         FROM horsies_workflow_tasks AS n
                        WHERE n.workflow_id = running.id AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))
     LIMIT $1
)
SELECT workflow_id, '0' AS stuck_case FROM decidable
 UNION ALL
SELECT workflow_id, CASE WHEN is_subworkflow THEN '1.5' ELSE '1' END FROM unstarted
 UNION ALL
SELECT workflow_id, '1.6' FROM untold
 UNION ALL
SELECT workflow_id, '1.7' FROM ended
 UNION ALL
SELECT workflow_id, '1.7' FROM bereft
 UNION ALL
SELECT workflow_id, CASE WHEN has_nodes THEN '2' ELSE '3' END FROM unclosed;

-- name: orphaned_tasks
-- Tasks that wait for a node which is gone, has ended or has another task.
SELECT t.id, t.workflow_id
  FROM horsies_tasks AS t
 WHERE t.status IN ('PENDING', 'CLAIMED') AND t.is_workflow_task
   AND NOT EXISTS (SELECT
                     FROM horsies_workflow_tasks AS n
                    WHERE n.task_id = t.id AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))
 LIMIT $1;

-- name: cancel_orphaned_tasks
WITH held AS (
    SELECT t.id
      FROM horsies_tasks AS t
     WHERE t.id = ANY($1::uuid[]) AND t.status IN ('PENDING', 'CLAIMED')
     ORDER BY t.id
       FOR NO KEY UPDATE
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'CANCELLED', result = $2::text::jsonb, error_code = 'TASK_CANCELLED', claimed = false,
           claim_expires_at = NULL, terminal_at = now(), updated_at = now()
      FROM held
     WHERE t.id = held.id
    RETURNING t.id, t.workflow_id
)
SELECT ended.id, ended.workflow_id
  FROM ended
 CROSS JOIN LATERAL pg_notify('horsies_task_done', ended.id::text);

-- name: request_advance
-- Have a run asked for that nobody asks for. The key is nobody's, so it is in the way of no outcome.
INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
SELECT gen_random_uuid(), $1, 0
 WHERE NOT EXISTS (SELECT FROM horsies_workflow_outbox WHERE workflow_id = $1 AND needs IS NULL);

-- name: set_lock_timeout
-- For no lock of this transaction is waited longer.
SELECT FROM set_config('lock_timeout', $1, true);

-- name: release_quarantined
-- Once an hour what was set aside is looked at again; and what asks for a run that is gone asks no more.
WITH gone AS (
    DELETE FROM horsies_workflow_outbox AS o
     WHERE NOT EXISTS (SELECT FROM horsies_workflows AS w WHERE w.id = o.workflow_id)
)
UPDATE horsies_workflow_outbox
   SET quarantined_at = NULL, retry_at = now()
 WHERE quarantined_at <= now() - interval '1 hour';
