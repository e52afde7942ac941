-- Parts that several statements share; `t` is the task.

-- fragment: summary_columns()
-- A task in a list, with its last `heartbeat`.
t.id, t.task_name AS name, t.queue_name AS queue, t.status, t.priority, t.attempts AS attempt_count, t.retry_count,
t.max_retries, t.crash_count, t.error_code, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
t.terminal_at AS finished_at, t.good_until, t.next_retry_at, t.claimed_by_worker_id AS worker_id, t.worker_hostname,
t.worker_pid, t.workflow_id, t.flags::text AS flags_json, now() - t.sent_at AS age,
heartbeat.at AS last_heartbeat_at, now() - heartbeat.at AS silence

-- fragment: last_heartbeat()
-- Of a CLAIMED or RUNNING task; the claim and the start count as the first ones.
SELECT coalesce(max(sent_at), CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END) AS at
  FROM horsies_heartbeats
 WHERE task_id = t.id AND claim_token = t.claim_token
   AND role = CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END
