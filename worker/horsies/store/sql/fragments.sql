-- Parts that several statements share; `source` is a table or CTE, with a condition where not all of its rows count.

-- fragment: insert_attempts(source)
-- Record the attempt of each task; `status` is the new status of the task.
INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at,
                                   error_code, error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                   worker_process_name)
SELECT id, attempt, claim_token, outcome, status = 'PENDING', started_at, now(), error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
  FROM {{ source }}

-- fragment: insert_outbox(source)
-- Let runs advance: a task or a sub-workflow of each has ended.
INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
SELECT id, workflow_id, workflow_task_index FROM {{ source }}
ON CONFLICT DO NOTHING

-- fragment: task_done_messages(source)
-- Channel and payload of the notifications of finished tasks; 200 ids fit into one (8,000 bytes).
SELECT 'horsies_task_done', string_agg(id::text, ',')
  FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM {{ source }}) AS numbered
 GROUP BY part

-- fragment: move_tasks(source)
-- Move CLAIMED and RUNNING tasks to their new status: either ended, or back in the queue. `has_run` tasks get an attempt.
-- `messages` are the notifications of the change.
attempt AS (
    {{ insert_attempts({{ source }} WHERE has_run) }}
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = moved.status, result = moved.result, error_code = moved.final_code,
           failed_reason = coalesce(moved.failed_reason, t.failed_reason), terminal_at = now(),
           failed_at = CASE WHEN moved.status = 'FAILED' THEN now() END,
           attempts = t.attempts + moved.has_run::integer, crash_count = t.crash_count + moved.is_crash::integer,
           overlap_possible = t.overlap_possible OR moved.may_overlap, claimed = false, claim_expires_at = NULL,
           worker_pid = moved.worker_pid, worker_process_name = moved.worker_process_name, updated_at = now()
      FROM {{ source }} AS moved
     WHERE t.id = moved.id AND moved.status <> 'PENDING'
    RETURNING t.id, t.claim_token, t.status
), requeued AS (
    UPDATE horsies_tasks AS t
       -- enqueued_at too: it is in the claim index, so a claim does not read the row before it is due.
       SET status = 'PENDING', enqueued_at = moved.due_at, next_retry_at = CASE WHEN moved.has_run THEN moved.due_at END,
           retry_count = moved.retry_count, failed_reason = coalesce(moved.failed_reason, t.failed_reason),
           attempts = t.attempts + moved.has_run::integer, crash_count = t.crash_count + moved.is_crash::integer,
           overlap_possible = t.overlap_possible OR moved.may_overlap, recovery_hold_until = NULL,
           claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL, started_at = NULL,
           worker_hostname = NULL, worker_pid = NULL, worker_process_name = NULL, kill_requested = false,
           updated_at = now()
      FROM {{ source }} AS moved
     WHERE t.id = moved.id AND moved.status = 'PENDING'
    RETURNING t.id, t.claim_token, t.status, t.queue_name, t.enqueued_at
), outbox AS (
    {{ insert_outbox({{ source }} WHERE is_workflow_task AND status <> 'PENDING') }}
), messages(channel, payload) AS (
    {{ task_done_messages(ended) }}
     UNION ALL
    -- No notification for a delayed retry: workers look up when the next task is due.
    SELECT DISTINCT 'horsies_task_new', left(queue_name, 255) FROM requeued WHERE enqueued_at <= now()
)

-- fragment: delete_old(table, due_rows, time)
-- Delete the oldest of the rows that may be deleted. `= ANY(ARRAY(SELECT ...))` reads the list once and looks up each row
-- by primary key.
WITH deleted AS (
    DELETE FROM {{ table }}
     WHERE id = ANY(ARRAY(SELECT due.id
                            FROM {{ due_rows }} AS due
                           WHERE due.{{ time }} < now() - $1::interval
                           ORDER BY due.{{ time }}
                           LIMIT $2))
    RETURNING {{ time }}
)
SELECT '{{ table }}' AS table_name, count(*) AS rows, min({{ time }}) AS oldest_at FROM deleted

-- fragment: count_old(table, due_rows, time)
SELECT '{{ table }}' AS table_name, count(*) AS rows, min({{ time }}) AS oldest_at
  FROM {{ due_rows }}
 WHERE {{ time }} < now() - $1::interval
