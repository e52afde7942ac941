-- name: owned_task
-- One claimed or running task with its last heartbeat and its worker, as input for the recovery decision.
SELECT t.id, t.task_name, t.status, t.queue_name, t.priority, t.claim_token, t.retry_count, t.max_retries, t.crash_count,
       t.flags::text AS flags, t.task_options::text AS task_options, t.sent_at, t.enqueued_at, t.claimed_at,
       t.started_at, t.good_until, t.claimed_by_worker_id AS owner_id, t.worker_hostname, t.worker_pid,
       t.worker_process_name, t.failed_reason, t.workflow_id::text AS workflow_id, t.retry_of::text AS retry_of, t.recovery_hold_until, t.no_restart,
       heartbeat.at AS last_heartbeat_at, now() AS now, w.state AS owner_state, w.last_heartbeat_at AS owner_seen_at,
       w.recovery_config::text AS owner_config, w.hostname AS owner_hostname, w.pid AS owner_pid
  FROM horsies_tasks AS t
  LEFT JOIN horsies_workers AS w ON w.id = t.claimed_by_worker_id
 CROSS JOIN LATERAL (
       SELECT coalesce(max(sent_at), CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END) AS at
         FROM horsies_heartbeats
        WHERE task_id = t.id AND claim_token = t.claim_token
          AND role = CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END) AS heartbeat
 WHERE t.id = $1 AND t.status IN ('CLAIMED', 'RUNNING') AND heartbeat.at IS NOT NULL;
