-- name: claim
-- Start the next due task: PENDING directly to RUNNING, ordered by priority, time and id; rows locked by another claim
-- are skipped. The node of a workflow task becomes RUNNING too.
WITH next_task AS (
    SELECT t.id
      FROM horsies_tasks AS t
     WHERE t.status = 'PENDING'
       AND t.enqueued_at <= now()
       AND (t.next_retry_at IS NULL OR t.next_retry_at <= now())
       AND (t.good_until IS NULL OR t.good_until > now())
       AND ($1::text[] IS NULL OR t.queue_name = ANY($1))
       AND t.queue_name <> ALL($2::text[])
       AND NOT EXISTS (SELECT FROM horsies_queues AS q
                        WHERE q.queue_name = t.queue_name AND q.paused_at IS NOT NULL)
     ORDER BY t.priority, t.enqueued_at, t.id
     LIMIT 1
       FOR UPDATE OF t SKIP LOCKED
), started_node AS (
    -- Locked after the task, unlike everywhere else: the task is known only now. A pause of the run at the same moment
    -- may deadlock with this; the database layer then retries one of the two.
    UPDATE horsies_workflow_tasks AS n
       SET status = 'RUNNING', started_at = now()
      FROM next_task
     WHERE n.task_id = next_task.id AND n.status = 'ENQUEUED'
)
UPDATE horsies_tasks AS t
   SET status = 'RUNNING', claim_token = t.claim_token + 1, claimed = false, claim_expires_at = NULL,
       claimed_at = now(), started_at = now(), next_retry_at = NULL, recovery_hold_until = NULL,
       claimed_by_worker_id = $3, worker_hostname = $4, worker_pid = $5, worker_process_name = $6, updated_at = now()
  FROM next_task
 WHERE t.id = next_task.id
RETURNING t.id, t.task_name, t.queue_name, t.args::text AS args, t.kwargs::text AS kwargs, t.flags::text AS flags,
          t.task_options::text AS task_options, t.context::text AS context, t.claim_token, t.retry_count,
          t.attempts, t.sent_at, t.started_at, t.good_until, t.overlap_possible;

-- name: complete
-- Returns no row if the claim was lost; so do `fail` and `retry`.
WITH ended AS (
    UPDATE horsies_tasks
       SET status = 'COMPLETED', result = $4::text::jsonb, completed_at = now(), terminal_at = now(),
           attempts = attempts + 1, failed_reason = NULL, updated_at = now()
     WHERE id = $1 AND status = 'RUNNING' AND claimed_by_worker_id = $2 AND claim_token = $3
    RETURNING *
), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, started_at, finished_at, worker_id,
                                       worker_hostname, worker_pid, worker_process_name)
    SELECT id, attempts, claim_token, 'COMPLETED', started_at, now(), claimed_by_worker_id,
           worker_hostname, worker_pid, worker_process_name
      FROM ended
), outbox AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM ended WHERE is_workflow_task
    ON CONFLICT DO NOTHING
)
SELECT ended.id FROM ended CROSS JOIN LATERAL pg_notify('horsies_task_done', ended.id::text);

-- name: fail
WITH ended AS (
    UPDATE horsies_tasks
       SET status = 'FAILED', result = $4::text::jsonb, failed_at = now(), terminal_at = now(),
           attempts = attempts + 1, error_code = $6, failed_reason = COALESCE($8, failed_reason), updated_at = now()
     WHERE id = $1 AND status = 'RUNNING' AND claimed_by_worker_id = $2 AND claim_token = $3
    RETURNING *
), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, started_at, finished_at, error_code,
                                       error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                       worker_process_name)
    SELECT id, attempts, claim_token, $5, started_at, now(), $6, $7, $8, claimed_by_worker_id,
           worker_hostname, worker_pid, worker_process_name
      FROM ended
), outbox AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM ended WHERE is_workflow_task
    ON CONFLICT DO NOTHING
)
SELECT ended.id FROM ended CROSS JOIN LATERAL pg_notify('horsies_task_done', ended.id::text);

-- name: retry
-- The attempt keeps the worker's columns; the task's are cleared for its next attempt. With no_restart set, the
-- workflow was paused or cancelled meanwhile and the task must not run again.
WITH locked AS (
    SELECT *
      FROM horsies_tasks
     WHERE id = $1 AND status = 'RUNNING' AND claimed_by_worker_id = $2 AND claim_token = $3 AND no_restart IS NULL
       FOR NO KEY UPDATE
), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at,
                                       error_code, error_message, failed_reason, worker_id, worker_hostname,
                                       worker_pid, worker_process_name)
    SELECT id, attempts + 1, claim_token, $5, true, started_at, now(), $6, $7, $8, claimed_by_worker_id,
           worker_hostname, worker_pid, worker_process_name
      FROM locked
)
UPDATE horsies_tasks AS t
   SET status = 'PENDING', retry_count = t.retry_count + 1, attempts = t.attempts + 1,
       enqueued_at = $4, next_retry_at = $4, claimed_at = NULL, claimed_by_worker_id = NULL, started_at = NULL,
       worker_hostname = NULL, worker_pid = NULL, worker_process_name = NULL, updated_at = now()
  FROM locked
 WHERE t.id = locked.id
RETURNING t.id;

-- name: overdue
-- PENDING tasks whose good_until has passed.
SELECT id, good_until
  FROM horsies_tasks
 WHERE status = 'PENDING' AND good_until <= now()
   AND ($1::text[] IS NULL OR queue_name = ANY($1))
 ORDER BY id
 LIMIT 500;

-- name: expire
-- End overdue tasks, each with the result given; tasks that are no longer PENDING are skipped.
WITH locked AS (
    SELECT t.id, input.document
      FROM unnest($1::uuid[], $2::text[]) AS input(id, document)
      JOIN horsies_tasks AS t ON t.id = input.id AND t.status = 'PENDING' AND t.good_until <= now()
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'EXPIRED', result = locked.document::jsonb, error_code = 'TASK_EXPIRED', terminal_at = now(),
           updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), outbox AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM ended WHERE is_workflow_task
    ON CONFLICT DO NOTHING
), messages AS (
    -- 200 ids fit into one notification (8,000 bytes).
    SELECT string_agg(part.id::text, ',') AS ids
      FROM (SELECT id, row_number() OVER () / 200 AS number FROM ended) AS part
     GROUP BY part.number
)
SELECT messages.ids FROM messages CROSS JOIN LATERAL pg_notify('horsies_task_done', messages.ids);
