-- name: finish
-- Bring running tasks to their end, or back for another attempt, each with the row of the attempt that ended. A row that
-- does not come back was moved by another hand first. A retry is asked for by its delay; it is granted while retries are
-- left and it would be due before good_until, and refused to a run that was paused or cancelled meanwhile.
-- Arrays of unknown length and a status that no index serves, as in claims.sql: each row is looked up by its key.
WITH asked AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::text[]),
                  (SELECT $5::text[]), (SELECT $6::text[]), (SELECT $7::text[]), (SELECT $8::text[]),
                  (SELECT $9::double precision[]), (SELECT $10::text[]), (SELECT $11::integer[]))
           AS asked(id, claim_token, worker_id, outcome, document, error_code, error_message, failed_reason,
                    retry_delay_s, poison_document, pid)
), held AS MATERIALIZED (
    SELECT asked.*, t.attempts + 1 AS attempt, t.no_restart, t.started_at, t.worker_hostname,
           coalesce(asked.pid, t.worker_pid) AS worker_pid,
           coalesce('worker-' || asked.pid, t.worker_process_name) AS worker_process_name,
           t.is_workflow_task, t.workflow_id, t.workflow_task_index,
           now() + make_interval(secs => asked.retry_delay_s) AS due_at,
           t.retry_count < t.max_retries AS has_retries, t.good_until,
           asked.poison_document IS NOT NULL AND t.crash_count + 1 >= $12 AS is_poison
      FROM asked
      JOIN horsies_tasks AS t ON t.id = asked.id AND t.claim_token = asked.claim_token
                             AND t.claimed_by_worker_id = asked.worker_id AND t.status || '' = 'RUNNING'
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), judged AS (
    SELECT *, CASE WHEN outcome = 'COMPLETED' THEN 'COMPLETED'
                   WHEN due_at IS NULL OR is_poison OR NOT has_retries OR due_at >= good_until THEN 'FAILED'
                   WHEN no_restart IS NOT NULL THEN 'CANCELLED'
                   ELSE 'PENDING' END AS status
      FROM held
), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at,
                                       error_code, error_message, failed_reason, worker_id, worker_hostname,
                                       worker_pid, worker_process_name)
    SELECT id, attempt, claim_token, outcome, status = 'PENDING', started_at, now(), error_code, error_message,
           failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
      FROM judged
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = judged.status, terminal_at = now(), attempts = judged.attempt,
           crash_count = t.crash_count + (judged.poison_document IS NOT NULL)::integer,
           completed_at = CASE WHEN judged.status = 'COMPLETED' THEN now() END,
           failed_at = CASE WHEN judged.status = 'FAILED' THEN now() END,
           failed_reason = CASE WHEN judged.status <> 'COMPLETED' THEN coalesce(judged.failed_reason, t.failed_reason) END,
           error_code = CASE WHEN judged.status = 'CANCELLED' THEN 'TASK_CANCELLED'
                             WHEN judged.is_poison THEN 'POISON_TASK'
                             ELSE judged.error_code END,
           result = CASE WHEN judged.status = 'CANCELLED' THEN $13::text::jsonb -> judged.no_restart
                         WHEN judged.is_poison THEN judged.poison_document::jsonb
                         ELSE judged.document::jsonb END,
           worker_pid = judged.worker_pid, worker_process_name = judged.worker_process_name, updated_at = now()
      FROM judged
     WHERE t.id = judged.id AND judged.status <> 'PENDING'
    RETURNING t.id, t.claim_token, t.status
), retried AS (
    UPDATE horsies_tasks AS t
       SET status = 'PENDING', retry_count = t.retry_count + 1, attempts = judged.attempt,
           crash_count = t.crash_count + (judged.poison_document IS NOT NULL)::integer,
           enqueued_at = judged.due_at, next_retry_at = judged.due_at,
           failed_reason = coalesce(judged.failed_reason, t.failed_reason),
           claimed_at = NULL, claimed_by_worker_id = NULL, started_at = NULL, worker_hostname = NULL, worker_pid = NULL,
           worker_process_name = NULL, kill_requested = false, updated_at = now()
      FROM judged
     WHERE t.id = judged.id AND judged.status = 'PENDING'
    RETURNING t.id, t.claim_token, t.status, t.queue_name, t.enqueued_at
), advance AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM judged WHERE is_workflow_task AND status <> 'PENDING'
    ON CONFLICT DO NOTHING
), said AS MATERIALIZED (
    -- A notification holds 200 ids.
    SELECT count(*) AS messages
      FROM (SELECT 'horsies_task_done', string_agg(id::text, ',')
              FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM ended) AS numbered
             GROUP BY part
             UNION ALL
            SELECT DISTINCT 'horsies_task_new', queue_name FROM retried WHERE enqueued_at <= now()
             UNION ALL
            SELECT 'horsies_events', event FROM unnest($14::text[]) AS event) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id, claim_token, status
  FROM (SELECT id, claim_token, status FROM ended UNION ALL SELECT id, claim_token, status FROM retried) AS moved
 WHERE (SELECT messages FROM said) >= 0;

-- name: complete
-- The same for tasks that have done what they should: nothing is to be judged, so that each row is looked up once.
WITH asked AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::text[]),
                  (SELECT $5::integer[])) AS asked(id, claim_token, worker_id, document, pid)
     ORDER BY id
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'COMPLETED', terminal_at = now(), attempts = t.attempts + 1, completed_at = now(), failed_at = NULL,
           failed_reason = NULL, error_code = NULL, result = asked.document::jsonb,
           worker_pid = coalesce(asked.pid, t.worker_pid),
           worker_process_name = coalesce('worker-' || asked.pid, t.worker_process_name), updated_at = now()
      FROM asked
     WHERE t.id = asked.id AND t.claim_token = asked.claim_token AND t.claimed_by_worker_id = asked.worker_id
       AND t.status || '' = 'RUNNING'
    RETURNING t.id, t.claim_token, t.status, t.attempts, t.started_at, t.claimed_by_worker_id, t.worker_hostname,
              t.worker_pid, t.worker_process_name, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at,
                                       worker_id, worker_hostname, worker_pid, worker_process_name)
    SELECT id, attempts, claim_token, 'COMPLETED', false, started_at, now(), claimed_by_worker_id, worker_hostname,
           worker_pid, worker_process_name
      FROM ended
), advance AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM ended WHERE is_workflow_task
    ON CONFLICT DO NOTHING
), said AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT 'horsies_task_done', string_agg(id::text, ',')
              FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM ended) AS numbered
             GROUP BY part
             UNION ALL
            SELECT 'horsies_events', event FROM unnest($6::text[]) AS event) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id, claim_token, status FROM ended WHERE (SELECT messages FROM said) >= 0;

-- name: attempts_by_claim
-- How the executions under these claims ended, as far as they did.
SELECT a.task_id AS id, a.claim_token, a.outcome, a.error_code
  FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[])) AS asked(id, claim_token)
  JOIN horsies_task_attempts AS a ON a.task_id = asked.id AND a.claim_token = asked.claim_token;

-- name: current_states
-- How tasks stand whose outcome was refused: who has them now, and since when.
SELECT id, status, claim_token, claimed_by_worker_id AS worker_id, claimed_at, started_at, terminal_at, error_code
  FROM horsies_tasks
 WHERE id = ANY((SELECT $1::uuid[])::uuid[]);
