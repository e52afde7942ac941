-- Parts that several statements share; `source` is a table or CTE, with a condition where not all of its rows count.

-- fragment: insert_attempts
-- Record the attempt of each task; `status` is the new status of the task.
INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at,
                                   error_code, error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                   worker_process_name)
SELECT id, attempt, claim_token, outcome, status = 'PENDING', started_at, now(), error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
  FROM {{ source }}

-- fragment: insert_outbox
-- Let runs advance: a task or a sub-workflow of each has ended.
INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
SELECT id, workflow_id, workflow_task_index FROM {{ source }}
ON CONFLICT DO NOTHING

-- fragment: task_done_messages
-- Channel and payload of the notifications of finished tasks; 200 ids fit into one (8,000 bytes).
SELECT 'horsies_task_done', string_agg(id::text, ',')
  FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM {{ source }}) AS numbered
 GROUP BY part
