-- name: window
-- The next rows in the order of their ids, whatever is in them. Only one of the two branches is ever carried out.
SELECT count(*)::integer   AS size,
       min(id::text)::uuid AS lowest,
       max(id::text)::uuid AS highest
  FROM ((SELECT id FROM horsies_tasks WHERE NOT $1::boolean AND id < $2::uuid ORDER BY id DESC LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks WHERE $1::boolean AND id > $2::uuid ORDER BY id LIMIT $3)) AS ahead;

-- name: matching
-- The tasks of one window that the wanted filter matches and the unwanted one does not. Both come as JSON, so that what
-- a filter means is written once.
SELECT t.id, t.task_name AS name, t.queue_name AS queue, t.status, t.priority, t.attempts AS attempt_count,
       t.retry_count, t.max_retries, t.crash_count, t.error_code, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
       t.terminal_at AS finished_at, t.good_until, t.next_retry_at, t.claimed_by_worker_id AS worker_id,
       t.worker_hostname, t.worker_pid, t.workflow_id, t.flags::text AS flags_json, now() - t.sent_at AS age,
       beat.at AS last_beat_at, now() - beat.at AS silence
  FROM horsies_tasks AS t
  LEFT JOIN LATERAL (
       SELECT coalesce(max(sent_at), t.started_at, t.claimed_at) AS at
         FROM horsies_heartbeats
        WHERE task_id = t.id AND claim_token = t.claim_token
          AND role = CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END) AS beat
    ON t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id BETWEEN $1 AND $2
   AND NOT EXISTS (
       SELECT
         FROM jsonb_to_recordset($3::text::jsonb) AS f(
              is_wanted boolean, statuses text[], queues text[], names text[], error_codes text[], worker_id uuid,
              workflow_id uuid, flag text, retried boolean, older_than interval, newer_than interval, text text,
              min_wait interval, min_run interval, min_silence interval, min_attempts integer, due_later boolean)
        WHERE f.is_wanted <> ((
              (f.statuses IS NULL OR t.status = ANY (f.statuses))
          AND (f.queues IS NULL OR t.queue_name = ANY (f.queues))
          AND (f.names IS NULL OR t.task_name LIKE ANY (f.names))
          AND (f.error_codes IS NULL OR t.error_code LIKE ANY (f.error_codes))
          AND (f.worker_id IS NULL OR t.claimed_by_worker_id = f.worker_id)
          AND (f.workflow_id IS NULL OR t.workflow_id = f.workflow_id)
          AND (f.flag IS NULL OR t.flags -> f.flag = 'true')
          AND (f.retried IS NULL OR (t.retry_count > 0) = f.retried)
          AND (f.older_than IS NULL OR now() - t.sent_at >= f.older_than)
          AND (f.newer_than IS NULL OR now() - t.sent_at < f.newer_than)
          AND (f.min_attempts IS NULL OR t.attempts >= f.min_attempts)
          AND (f.due_later IS NULL OR (t.status = 'PENDING' AND t.enqueued_at > now()) = f.due_later)
          AND (f.min_wait IS NULL
               OR CASE WHEN t.status IN ('PENDING', 'CLAIMED') THEN now() ELSE coalesce(t.started_at, t.terminal_at) END
                  - t.enqueued_at >= f.min_wait)
          -- A task that waits for its next attempt still has the start of its last one, and does not run.
          AND (f.min_run IS NULL
               OR CASE WHEN t.status = 'RUNNING' THEN now() ELSE t.terminal_at END - t.started_at >= f.min_run)
          AND (f.min_silence IS NULL
               OR t.status IN ('CLAIMED', 'RUNNING')
                  AND now() - coalesce((SELECT max(beat.sent_at)
                                          FROM horsies_heartbeats AS beat
                                         WHERE beat.task_id = t.id AND beat.claim_token = t.claim_token),
                                       t.started_at, t.claimed_at) >= f.min_silence)
          AND (f.text IS NULL
               OR strpos(lower(concat_ws(E'\n', t.task_name, t.error_code, t.failed_reason, t.result #>> '{err,message}',
                                         t.args, t.kwargs)), lower(f.text)) > 0)
        ) IS TRUE))
 ORDER BY CASE WHEN $4::boolean THEN t.id END, t.id DESC
 LIMIT $5;

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
       SELECT coalesce(max(sent_at), t.started_at, t.claimed_at) AS at
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
