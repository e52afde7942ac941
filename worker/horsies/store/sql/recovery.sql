-- name: server_clock
-- The database clock and the start of the server.
SELECT now() AS now, pg_postmaster_start_time() AS server_started_at;

-- name: live_workers
-- Workers that neither stopped nor were declared lost, with their recovery settings.
SELECT id AS worker_id, state, last_heartbeat_at, recovery_config::text AS stored_config, health::text AS health
  FROM horsies_workers
 WHERE state IN ('starting', 'running', 'draining')
 ORDER BY id;

-- name: stale
-- A page of tasks in one status that have been silent for longer than the threshold given, or whose owner has stopped,
-- ordered by id. Whether to recover one also depends on its owner and its flags, and is decided by the caller.
SELECT t.id, t.task_name, t.status, t.queue_name, t.priority, t.claim_token, t.retry_count, t.max_retries,
       t.crash_count, t.flags::text AS flags, t.task_options::text AS task_options, t.sent_at, t.enqueued_at,
       t.claimed_at, t.started_at, t.good_until, t.claimed_by_worker_id AS owner_id, t.worker_hostname, t.worker_pid,
       t.worker_process_name, t.failed_reason, t.workflow_id::text AS workflow_id, t.retry_of::text AS retry_of, t.recovery_hold_until, t.no_restart,
       stale_task.last_beat_at AS last_heartbeat_at, now() AS now, w.state AS owner_state,
       w.last_heartbeat_at AS owner_seen_at, w.recovery_config::text AS owner_config
  FROM horsies_quiet($1, $2, $3, $4, $5, $6, $7) AS stale_task
  JOIN horsies_tasks AS t ON t.id = stale_task.id
  LEFT JOIN horsies_workers AS w ON w.id = t.claimed_by_worker_id
 ORDER BY t.id;

-- name: apply_decision
-- Move one task as recovery decided, and store the events. Returns no row if the task or its last heartbeat has changed
-- since it was read. Only a task that was RUNNING has an attempt, and has crashed.
WITH decided AS MATERIALIZED (
    SELECT t.id, t.claim_token, t.queue_name, $6 AS status, $7::timestamptz AS due_at, $8::integer AS retry_count,
           $9 AS final_code, $10::text::jsonb AS result, $11 AS failed_reason, 'FAILED' AS outcome,
           'WORKER_CRASHED' AS error_code, $12 AS error_message, $13::boolean AS may_overlap,
           t.status = 'RUNNING' AS has_run, t.status = 'RUNNING' AS is_crash, t.attempts + 1 AS attempt,
           coalesce(t.started_at, t.claimed_at, t.updated_at) AS started_at, t.claimed_by_worker_id AS worker_id,
           t.worker_hostname, t.worker_pid, t.worker_process_name, t.is_workflow_task, t.workflow_id,
           t.workflow_task_index
      FROM horsies_lock_stale($1, $2, $3, $4, $5) AS t
), {{ move_tasks(decided) }}, event AS (
    INSERT INTO horsies_events (kind, task_id, workflow_id, worker_id, claim_token, queue_name, evidence)
    SELECT input.kind, decided.id, decided.workflow_id, decided.worker_id, decided.claim_token, decided.queue_name,
           input.evidence
      FROM decided
     CROSS JOIN jsonb_to_recordset($14::text::jsonb) AS input(kind text, evidence jsonb)
    RETURNING kind, queue_name, task_id
), notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT channel, payload FROM messages
             UNION ALL
            SELECT 'horsies_events', pg_catalog.json_build_object(
                       'kind', kind, 'queue', left(queue_name, 255), 'from', $2, 'to', $6, 'count', 1,
                       'ids', pg_catalog.json_build_array(task_id))::text
              FROM event) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id FROM decided WHERE (SELECT messages FROM notified) >= 0;

-- name: hold
-- Leave one stale task alone until $6; no row if it has changed or sent a heartbeat since it was read.
UPDATE horsies_tasks AS t
   SET recovery_hold_until = $6, updated_at = now()
  FROM horsies_lock_stale($1, $2, $3, $4, $5) AS stale
 WHERE t.id = stale.id
RETURNING t.id;

-- name: mark_lost
-- Declare workers lost that have sent no heartbeat since they were read.
WITH silent AS (
    SELECT w.id, input.evidence
      FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS input(id, seen_at, evidence)
      JOIN horsies_workers AS w ON w.id = input.id AND w.last_heartbeat_at = input.seen_at
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
 CROSS JOIN LATERAL pg_notify('horsies_events', pg_catalog.json_build_object(
       'kind', 'worker_lost', 'queue', NULL, 'from', NULL, 'to', NULL, 'count', 1,
       'ids', pg_catalog.json_build_array())::text);

-- name: overdue
-- The next PENDING tasks whose good_until has passed, ordered by good_until. `good_until >= $1` follows from the row
-- comparison, but only in this form can the index on good_until use it.
SELECT id, task_name, queue_name, priority, sent_at, enqueued_at, good_until, retry_count, max_retries, workflow_id,
       now() AS now
  FROM horsies_tasks
 WHERE status = 'PENDING' AND good_until <= now() AND good_until >= $1 AND (good_until, id) > ($1, $2)
 ORDER BY good_until, id
 LIMIT $3;

-- name: expire
-- End overdue tasks, each with the result given; tasks that are no longer PENDING are skipped.
WITH locked AS (
    SELECT t.id, input.document
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[])) AS input(id, document)
      JOIN horsies_tasks AS t ON t.id = input.id AND t.status || '' = 'PENDING'
     WHERE t.good_until <= now()
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'EXPIRED', result = locked.document::jsonb, error_code = 'TASK_EXPIRED', terminal_at = now(),
           updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), {{ report_ended(ended) }};

-- name: record_fleet_mismatch
-- Record that workers use different settings: once an hour, and at once when the values change.
INSERT INTO horsies_events (kind, evidence)
SELECT 'fleet_mismatch', $1::text::jsonb
 WHERE NOT EXISTS (SELECT
                     FROM horsies_events
                    WHERE kind = 'fleet_mismatch' AND at > now() - interval '1 hour' AND evidence = $1::text::jsonb);

-- name: try_leader_lock
-- The transaction that holds the lock stays idle during the sweep; if its process vanishes, the server ends the session
-- after $1, and with it the lock.
SELECT pg_try_advisory_xact_lock(horsies_lock_key('sweep')) AS is_acquired
  FROM set_config('idle_in_transaction_session_timeout', $1, true);

-- name: keep_leader_lock
-- Restarts the idle timeout of the transaction that holds the leader lock.
SELECT;
