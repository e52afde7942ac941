-- name: summaries
SELECT t.id, t.task_name AS name, t.queue_name AS queue, t.status, t.priority, t.attempts AS attempt_count,
       t.retry_count, t.max_retries, t.crash_count, t.error_code, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
       t.terminal_at AS finished_at, t.good_until, t.next_retry_at, t.claimed_by_worker_id AS worker_id,
       t.worker_hostname, t.worker_pid, t.workflow_id, t.flags::text AS flags_json, now() - t.sent_at AS age,
       beat.at AS last_beat_at, now() - beat.at AS silence
  FROM horsies_tasks AS t
  LEFT JOIN LATERAL (
       SELECT coalesce(max(sent_at), CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END) AS at
         FROM horsies_heartbeats
        WHERE task_id = t.id AND claim_token = t.claim_token
          AND role = CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END) AS beat
    ON t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id = ANY ($1::uuid[])
 ORDER BY t.id DESC;

-- name: detail
SELECT t.id, t.task_name AS name, t.queue_name AS queue, t.status, t.priority, t.attempts AS attempt_count,
       t.retry_count, t.max_retries, t.crash_count, t.error_code, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
       t.terminal_at AS finished_at, t.good_until, t.next_retry_at, t.claimed_by_worker_id AS worker_id,
       t.worker_hostname, t.worker_pid, t.workflow_id, t.flags::text AS flags_json, now() - t.sent_at AS age,
       beat.at AS last_beat_at, now() - beat.at AS silence,
       t.args::text AS args_json, t.kwargs::text AS kwargs_json, t.result::text AS result_json, t.failed_reason,
       t.claim_token, t.claim_expires_at, t.recovery_hold_until, t.overlap_possible, t.no_restart,
       t.task_options::text AS options_json, t.idempotency_key, t.retry_of
  FROM horsies_tasks AS t
  LEFT JOIN LATERAL (
       SELECT coalesce(max(sent_at), CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END) AS at
         FROM horsies_heartbeats
        WHERE task_id = t.id AND claim_token = t.claim_token
          AND role = CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END) AS beat
    ON t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id = $1;

-- name: beats
-- The newest signs of life of every claim of a task.
SELECT role, sender_id, claim_token, sent_at AS at, now() - sent_at AS age
  FROM horsies_heartbeats
 WHERE task_id = $1
 ORDER BY sent_at DESC, id DESC
 LIMIT $2;

-- name: events
SELECT at, kind, evidence::text AS evidence_json
  FROM horsies_events
 WHERE task_id = $1
 ORDER BY at DESC, id DESC
 LIMIT $2;
