-- name: summaries
-- Tasks in a list. The claim and the start count as the first heartbeats.
SELECT t.id, t.task_name AS name, t.queue_name AS queue, t.status, t.priority, t.attempts AS attempt_count,
       t.retry_count, t.max_retries, t.crash_count, t.error_code, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
       t.terminal_at AS finished_at, t.good_until, t.next_retry_at, t.claimed_by_worker_id AS worker_id,
       t.worker_hostname, t.worker_pid, t.workflow_id, t.flags::text AS flags_json, now() - t.sent_at AS age,
       heartbeat.at AS last_heartbeat_at, now() - heartbeat.at AS silence
  FROM horsies_tasks AS t
  LEFT JOIN LATERAL (
       SELECT coalesce(max(sent_at), CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END) AS at
         FROM horsies_heartbeats
        WHERE task_id = t.id AND claim_token = t.claim_token
          AND role = CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END) AS heartbeat
    ON t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id = ANY ($1::uuid[])
 ORDER BY t.id DESC;

-- name: detail
SELECT t.id, t.task_name AS name, t.queue_name AS queue, t.status, t.priority, t.attempts AS attempt_count,
       t.retry_count, t.max_retries, t.crash_count, t.error_code, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
       t.terminal_at AS finished_at, t.good_until, t.next_retry_at, t.claimed_by_worker_id AS worker_id,
       t.worker_hostname, t.worker_pid, t.workflow_id, t.flags::text AS flags_json, now() - t.sent_at AS age,
       heartbeat.at AS last_heartbeat_at, now() - heartbeat.at AS silence,
       t.args::text AS args_json, t.kwargs::text AS kwargs_json, t.result::text AS result_json, t.failed_reason,
       t.claim_token, t.claim_expires_at, t.recovery_hold_until, t.overlap_possible, t.no_restart,
       t.task_options::text AS options_json, t.idempotency_key, t.retry_of
  FROM horsies_tasks AS t
  LEFT JOIN LATERAL (
       SELECT coalesce(max(sent_at), CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END) AS at
         FROM horsies_heartbeats
        WHERE task_id = t.id AND claim_token = t.claim_token
          AND role = CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END) AS heartbeat
    ON t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id = $1;

-- name: heartbeats
-- The newest heartbeats of a task, of all its claims.
SELECT role, sender_id, claim_token, sent_at AS at, now() - sent_at AS age
  FROM horsies_heartbeats
 WHERE task_id = $1
 ORDER BY sent_at DESC, id DESC
 LIMIT $2;

-- name: payload_previews
-- Arguments of tasks, up to $2 bytes. pg_column_size does not read values that are stored out of line.
SELECT id, size, CASE WHEN size <= $2 THEN args::text END AS args_json,
       CASE WHEN size <= $2 THEN kwargs::text END AS kwargs_json
  FROM (SELECT id, args, kwargs, pg_catalog.pg_column_size(args) + pg_catalog.pg_column_size(kwargs) AS size
          FROM horsies_tasks
         WHERE id = ANY ($1::uuid[])) AS payload;

-- name: events
-- The newest events of a task, found with its index: `latest_events` would scan all events for a few matches.
SELECT id, at, kind, task_id, workflow_id, worker_id, claim_token, queue_name AS queue, evidence::text AS evidence_json
  FROM horsies_events
 WHERE task_id = $1
 ORDER BY at DESC, id DESC
 LIMIT $2;
