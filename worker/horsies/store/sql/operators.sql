-- name: targets
-- Current state of the tasks an operator selected. With $2, tasks that were created or finished after that instant are
-- left out: they were not in the list the operator saw.
SELECT t.id, t.status, t.claim_token, t.error_code, t.task_name, t.queue_name, t.is_workflow_task, t.no_restart,
       t.status = 'PENDING' AND greatest(t.enqueued_at, t.next_retry_at) > now() AS is_delayed,
       coalesce(t.good_until <= now(), false) AS is_overdue,
       t.attempts > 0 OR t.started_at IS NOT NULL AS has_run,
       NOT (jsonb_typeof(t.args) = 'array' AND jsonb_typeof(t.kwargs) = 'object'
            AND jsonb_typeof(t.task_options) = 'object' AND jsonb_typeof(t.flags) = 'object'
            AND length(t.task_name) BETWEEN 1 AND 255 AND length(t.queue_name) BETWEEN 1 AND 255) AS is_malformed,
       coalesce(w.state IN ('starting', 'running', 'draining'), false) AS has_live_owner,
       now() AS seen_at
  FROM horsies_tasks AS t
  LEFT JOIN horsies_workers AS w ON w.id = t.claimed_by_worker_id AND t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id = ANY($1::uuid[])
   AND ($2::timestamptz IS NULL OR coalesce(t.terminal_at, t.created_at) <= $2)
 ORDER BY t.id;

-- name: server_time
-- The database clock.
SELECT now() AS at;

-- name: end_tasks
-- End tasks that are still in the state shown to the operator; others are not returned. A running attempt is recorded
-- as failed. kill_requested tells its owner to kill the process.
WITH locked AS MATERIALIZED (
    SELECT t.id, t.status AS from_status, $4 AS status, t.attempts + 1 AS attempt, t.claim_token, 'FAILED' AS outcome,
           t.started_at, $6 AS error_code, $7 AS error_message, $7 AS failed_reason, t.claimed_by_worker_id AS worker_id,
           t.worker_hostname, t.worker_pid, t.worker_process_name
      {{ unfinished_as_shown($1, $2, $3) }}
), attempt AS (
    {{ insert_attempts(locked WHERE from_status = 'RUNNING') }}
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = $4, terminal_at = now(), result = $5::text::jsonb, error_code = $6, failed_reason = $7,
           failed_at = CASE WHEN $4 = 'FAILED' THEN now() END,
           attempts = t.attempts + (locked.from_status = 'RUNNING')::integer,
           kill_requested = $8::boolean AND locked.from_status = 'RUNNING',
           claimed = false, claim_expires_at = NULL, updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.claim_token, t.queue_name, locked.from_status, t.status, t.claimed_by_worker_id,
              t.is_workflow_task, t.workflow_id, t.workflow_task_index
), outbox AS (
    {{ insert_outbox(ended WHERE is_workflow_task) }}
)
SELECT id, claim_token, queue_name, from_status, status, claimed_by_worker_id AS worker_id, NULL::uuid AS new_id
  FROM ended;

-- name: requeue
-- Make tasks that are still in the state shown claimable now, without spending a retry. A CLAIMED task keeps its place
-- in the queue. A running attempt is recorded as failed; with $5 its process may still be alive and the next attempt is
-- marked overlap_possible. A task past its good_until, or whose workflow was paused or cancelled, ends instead.
WITH locked AS MATERIALIZED (
    SELECT t.id, t.status AS from_status, t.attempts + 1 AS attempt, t.claim_token, 'FAILED' AS outcome, t.started_at,
           'OPERATOR_REQUEUED' AS error_code, $4 AS error_message, $4 AS failed_reason, t.no_restart,
           t.claimed_by_worker_id AS worker_id, t.worker_hostname, t.worker_pid, t.worker_process_name,
           CASE WHEN t.good_until <= now() THEN CASE t.status WHEN 'RUNNING' THEN 'FAILED' ELSE 'EXPIRED' END
                WHEN t.no_restart IS NOT NULL THEN 'CANCELLED'
                ELSE 'PENDING' END AS status
      {{ unfinished_as_shown($1, $2, $3) }}
), attempt AS (
    {{ insert_attempts(locked WHERE from_status = 'RUNNING') }}
), requeued AS (
    UPDATE horsies_tasks AS t
       SET status = locked.status,
           attempts = t.attempts + (locked.from_status = 'RUNNING')::integer,
           enqueued_at = CASE WHEN locked.from_status = 'CLAIMED' THEN t.enqueued_at ELSE now() END,
           next_retry_at = NULL, recovery_hold_until = NULL,
           overlap_possible = t.overlap_possible OR ($5::boolean AND locked.from_status = 'RUNNING'),
           failed_reason = CASE WHEN locked.from_status = 'PENDING' THEN t.failed_reason ELSE $4 END,
           result = coalesce($6::text::jsonb -> locked.status,
                             CASE WHEN locked.status = 'CANCELLED' THEN $7::text::jsonb -> locked.no_restart END),
           error_code = CASE locked.status WHEN 'EXPIRED' THEN 'TASK_EXPIRED' WHEN 'FAILED' THEN 'OPERATOR_FAILED'
                                            WHEN 'CANCELLED' THEN 'TASK_CANCELLED' END,
           terminal_at = CASE WHEN locked.status <> 'PENDING' THEN now() END,
           failed_at = CASE WHEN locked.status = 'FAILED' THEN now() END,
           claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL, started_at = NULL,
           worker_hostname = NULL, worker_pid = NULL, worker_process_name = NULL, kill_requested = false,
           updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.claim_token, t.queue_name, locked.from_status, t.status, locked.worker_id,
              locked.started_at, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), outbox AS (
    {{ insert_outbox(requeued WHERE is_workflow_task AND status <> 'PENDING') }}
), overlap AS (
    INSERT INTO horsies_events (kind, task_id, worker_id, claim_token, queue_name, evidence)
    SELECT 'overlap_possible', id, worker_id, claim_token, queue_name,
           pg_catalog.jsonb_build_object('owner', worker_id, 'age_s', extract(epoch FROM now() - started_at))
      FROM requeued
     WHERE $5 AND from_status = 'RUNNING' AND status = 'PENDING'
)
SELECT id, claim_token, queue_name, from_status, status, worker_id, NULL::uuid AS new_id FROM requeued;

-- name: request_kill
-- Ask the owners of running tasks to kill them. The owner changes the status afterwards.
WITH locked AS (
    SELECT t.id
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[])) AS input(id, claim_token)
      JOIN horsies_tasks AS t ON t.id = input.id AND t.claim_token = input.claim_token AND t.status || '' = 'RUNNING'
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), marked AS (
    UPDATE horsies_tasks AS t
       SET kill_requested = true, updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.claimed_by_worker_id
)
SELECT marked.id, marked.claimed_by_worker_id AS worker_id,
       coalesce(w.state IN ('starting', 'running', 'draining'), false) AS has_live_owner
  FROM marked
  LEFT JOIN horsies_workers AS w ON w.id = marked.claimed_by_worker_id;

-- name: kill_outcomes
-- State of running tasks after a kill request. A task whose code had not started has no attempt for this claim; one
-- that ended before the kill has an attempt with another error code.
SELECT t.id, t.queue_name, t.status,
       t.status = 'RUNNING' AND t.claim_token = input.claim_token AS is_still_running,
       coalesce(a.error_code = 'OPERATOR_REQUEUED', a.task_id IS NULL AND t.terminal_at IS NULL) AS is_requeued
  FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[])) AS input(id, claim_token)
  JOIN horsies_tasks AS t ON t.id = input.id
  LEFT JOIN horsies_task_attempts AS a ON a.task_id = input.id AND a.claim_token = input.claim_token;

-- name: resend
-- Insert a new task for each finished one: same call and options, new id, due now, no deadline.
WITH locked AS MATERIALIZED (
    SELECT input.new_id, t.id, t.claim_token, t.status, t.task_name, t.queue_name, t.priority, t.args, t.kwargs,
           t.max_retries, t.task_options, t.flags, t.enqueue_sha
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[]), (SELECT $3::bigint[]), (SELECT $4::uuid[]))
           AS input(id, status, claim_token, new_id)
      JOIN horsies_tasks AS t ON t.id = input.id AND t.claim_token = input.claim_token AND t.status = input.status
     WHERE NOT t.is_workflow_task
     ORDER BY t.id
       -- Keeps retention from deleting the row meanwhile, and nothing else.
       FOR KEY SHARE OF t
), inserted AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, max_retries,
                               task_options, flags, enqueue_sha, retry_of)
    SELECT new_id, task_name, queue_name, priority, args, kwargs, now(), clock_timestamp(), max_retries, task_options,
           flags, enqueue_sha, id
      FROM locked
     ORDER BY new_id
    RETURNING id
)
SELECT locked.id, locked.claim_token, locked.queue_name, locked.status AS from_status, locked.status,
       NULL::uuid AS worker_id, locked.new_id
  FROM locked
  JOIN inserted ON inserted.id = locked.new_id;

-- name: send_notifications
-- Notify waiters of finished tasks, workers of queues with new tasks, viewers of changes, and owners of kill requests.
SELECT count(*) AS messages
  FROM ({{ task_done_messages(pg_catalog.unnest($1::uuid[]) AS id) }}
         UNION ALL
        SELECT 'horsies_task_new', left(queue_name, 255) FROM pg_catalog.unnest($2::text[]) AS queue_name
         UNION ALL
        SELECT 'horsies_events', event FROM pg_catalog.unnest($3::text[]) AS event
         UNION ALL
        SELECT 'horsies_worker_ping', message FROM pg_catalog.unnest($4::text[]) AS message
       ) AS message(channel, payload)
 CROSS JOIN LATERAL pg_notify(message.channel, message.payload);

-- name: insert_audit_entry
-- Insert one entry per action; later batches add to it in their own transactions.
INSERT INTO horsies_audit (actor, host, via, action, reason, filter, dry_run, matched, affected, skipped, task_ids)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, $11)
RETURNING id;

-- name: add_audit_progress
-- Add the result of a batch to an audit entry, which names at most $6 tasks.
UPDATE horsies_audit
   SET matched = matched + $2, affected = affected + $3, skipped = skipped + $4,
       task_ids = (pg_catalog.array_cat(task_ids, $5::uuid[]))[1:$6::integer]
 WHERE id = $1
RETURNING id;

-- name: record_event
-- Store an event and notify viewers.
WITH event AS (
    INSERT INTO horsies_events (kind, task_id, workflow_id, worker_id, claim_token, queue_name, evidence)
    VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb)
    RETURNING *
)
SELECT event.id
  FROM event
 CROSS JOIN LATERAL pg_notify('horsies_events', pg_catalog.json_build_object(
       'kind', event.kind, 'queue', left(event.queue_name, 255), 'from', NULL, 'to', NULL, 'count', 1,
       'ids', pg_catalog.array_remove(ARRAY[event.task_id], NULL))::text);

-- name: notify_viewers
-- Notify viewers only.
SELECT count(*) AS messages
  FROM pg_catalog.unnest($1::text[]) AS event
 CROSS JOIN LATERAL pg_notify('horsies_events', event);
