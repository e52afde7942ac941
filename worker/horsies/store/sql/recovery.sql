-- name: server_clock
SELECT now() AS now, pg_postmaster_start_time() AS server_started_at;

-- name: live_workers
-- The workers that have neither stopped nor been declared lost, with the settings that they live by.
SELECT id AS worker_id, state, last_heartbeat_at, recovery_config::text AS recovery_config, health::text AS health
  FROM horsies_workers
 WHERE state IN ('starting', 'running', 'draining')
 ORDER BY id;

-- name: stale
-- A page of the tasks in one state that are past the judge's own threshold, or whose owner has stopped, in the order of
-- their ids. Whether one is condemned depends on its owner and its flags, and is not for this to say.
SELECT t.id, t.task_name, t.status, t.queue_name, t.priority, t.claim_token, t.retry_count, t.max_retries, t.crash_count,
       t.flags::text AS flags, t.task_options::text AS task_options, t.sent_at, t.enqueued_at, t.claimed_at,
       t.started_at, t.good_until, t.claimed_by_worker_id AS owner_id, t.worker_hostname, t.worker_pid,
       t.worker_process_name, t.failed_reason, t.workflow_id, t.retry_of, t.recovery_hold_until, t.no_restart,
       quiet.last_beat_at AS last_heartbeat_at, now() AS now, w.state AS owner_state, w.last_heartbeat_at AS owner_seen_at,
       w.recovery_config::text AS owner_config
  FROM horsies_quiet($1, $2, $3, $4, $5, $6, $7) AS quiet
  JOIN horsies_tasks AS t ON t.id = quiet.id
  LEFT JOIN horsies_workers AS w ON w.id = t.claimed_by_worker_id
 ORDER BY t.id;

-- name: apply_decision
-- Carry out a verdict about one task, unless its row or its last beat is no longer what was judged.
SELECT horsies_recover($1, $2, $3, $4, $5, $6::text::jsonb) AS is_applied;

-- name: mark_lost
-- Declare workers lost that have not beaten since they were looked at.
WITH silent AS (
    SELECT w.id, asked.evidence
      FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS asked(id, seen_at, evidence)
      JOIN horsies_workers AS w ON w.id = asked.id AND w.last_heartbeat_at = asked.seen_at
                               AND w.state IN ('starting', 'running', 'draining')
     ORDER BY w.id
       FOR NO KEY UPDATE OF w
), marked AS (
    UPDATE horsies_workers AS w
       SET state = 'lost', lost_at = now()
      FROM silent
     WHERE w.id = silent.id
    RETURNING w.id, silent.evidence
), event AS (
    INSERT INTO horsies_events (kind, worker_id, evidence)
    SELECT 'worker_lost', id, evidence::jsonb FROM marked
    RETURNING worker_id AS id
)
SELECT event.id
  FROM event
 CROSS JOIN LATERAL pg_notify('horsies_events', json_build_object(
       'kind', 'worker_lost', 'queue', NULL, 'from', NULL, 'to', NULL, 'count', 1, 'ids', json_build_array())::text);

-- name: overdue
-- The next PENDING tasks that are past their good_until, in the order of that instant.
SELECT id, task_name, queue_name, priority, sent_at, enqueued_at, good_until, retry_count, max_retries, workflow_id,
       now() AS now
  FROM horsies_tasks
 WHERE status = 'PENDING' AND good_until <= now() AND good_until >= $1 AND (good_until, id) > ($1, $2)
 ORDER BY good_until, id
 LIMIT $3;

-- name: expire
-- End overdue tasks with the result given for each; those that moved meanwhile are left alone.
WITH held AS (
    SELECT t.id, due.document
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[])) AS due(id, document)
      JOIN horsies_tasks AS t ON t.id = due.id AND t.status || '' = 'PENDING'
     WHERE t.good_until <= now()
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'EXPIRED', result = held.document::jsonb, error_code = 'TASK_EXPIRED', terminal_at = now(),
           updated_at = now()
      FROM held
     WHERE t.id = held.id
    RETURNING t.id, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), advance AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM ended WHERE is_workflow_task
    ON CONFLICT DO NOTHING
), said AS MATERIALIZED (
    -- A notification holds 200 ids.
    SELECT count(*) AS messages
      FROM (SELECT string_agg(id::text, ',') AS ids
              FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM ended) AS numbered
             GROUP BY part) AS message
     CROSS JOIN LATERAL pg_notify('horsies_task_done', message.ids)
)
SELECT id FROM ended WHERE (SELECT messages FROM said) >= 0;

-- name: record_fleet_mismatch
-- Write down once an hour that workers live by different settings, and again at once when the values change.
INSERT INTO horsies_events (kind, evidence)
SELECT 'fleet_mismatch', $1::text::jsonb
 WHERE NOT EXISTS (SELECT
                     FROM horsies_events
                    WHERE kind = 'fleet_mismatch' AND at > now() - interval '1 hour' AND evidence = $1::text::jsonb);

-- name: try_leader_lock
-- The transaction that holds the turn is idle for as long as the sweep takes, on purpose.
SELECT pg_try_advisory_xact_lock(horsies_lock_key('sweep')) AS is_ours
  FROM set_config('idle_in_transaction_session_timeout', '0', true);
