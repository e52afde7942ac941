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
