-- name: claim
-- Claim the best due tasks: the first become RUNNING, one for each pid in $9, the rest CLAIMED.
--
-- Tasks with an expired lease are claimed but not started.
WITH input AS (
    SELECT *
      FROM unnest($1::text[], $2::integer[], $3::integer[], $12::timestamptz[])
           AS input(queue_name, capacity, cap, skip_before)
), in_flight AS MATERIALIZED (
    SELECT queue_name, tasks
      FROM horsies_lock_in_flight($5::integer IS NOT NULL, ARRAY(SELECT queue_name FROM input WHERE cap IS NOT NULL))
     -- Without a cap the function is not called: no lock, no count.
     WHERE $5 IS NOT NULL OR pg_catalog.num_nonnulls(VARIADIC $3) > 0
), budget AS (
    -- least() ignores NULL: without a cap only the worker's own limit counts.
    SELECT greatest(0, least($4::integer, $5 - (SELECT coalesce(sum(tasks), 0)::integer FROM in_flight)))::integer
               AS tasks
), open_queues AS MATERIALIZED (
    SELECT input.queue_name,
           greatest(0, least(budget.tasks, input.capacity, input.cap - coalesce(in_flight.tasks, 0)))::integer
               AS capacity, input.skip_before
      FROM budget
     CROSS JOIN input
      LEFT JOIN in_flight USING (queue_name)
     WHERE NOT EXISTS (SELECT
                         FROM horsies_queues AS q
                        WHERE q.queue_name = input.queue_name AND q.paused_at IS NOT NULL)
), eligible AS (
    SELECT open_queues.queue_name, open_queues.capacity, due.id, due.priority, due.enqueued_at, true AS may_start
      FROM open_queues
     CROSS JOIN LATERAL (
           {{ due_tasks(open_queues, $10, $11) }}
           ) AS due
     UNION ALL
    SELECT open_queues.queue_name, open_queues.capacity, lease_expired.*
      FROM open_queues
     CROSS JOIN LATERAL (
           SELECT t.id, t.priority, t.enqueued_at, false AS may_start
             FROM horsies_tasks AS t
            WHERE t.status = 'CLAIMED' AND t.queue_name = open_queues.queue_name AND t.claim_expires_at <= now()
              AND (t.good_until IS NULL OR t.good_until > now())
            ORDER BY t.priority, t.enqueued_at, t.id
            LIMIT open_queues.capacity
              FOR UPDATE SKIP LOCKED) AS lease_expired
), ranked AS (
    -- Due tasks and expired leases together may exceed the capacity of a queue.
    SELECT *, row_number() OVER (PARTITION BY queue_name ORDER BY priority, enqueued_at, id) AS queue_order
      FROM eligible
), chosen AS (
    SELECT id, may_start, row_number() OVER (ORDER BY priority, enqueued_at, id) AS claim_order
      FROM ranked
     WHERE queue_order <= capacity
     ORDER BY claim_order
     LIMIT (SELECT tasks FROM budget)
), assigned AS MATERIALIZED (
    SELECT id, claim_order, CASE WHEN may_start THEN ($9::integer[])[claim_order] END AS pid FROM chosen
)
UPDATE horsies_tasks AS t
   SET status = CASE WHEN assigned_task.pid IS NULL THEN 'CLAIMED' ELSE 'RUNNING' END,
       claimed = assigned_task.pid IS NULL,
       claim_expires_at = CASE WHEN assigned_task.pid IS NULL THEN now() + pg_catalog.make_interval(secs => $6) END,
       started_at = CASE WHEN assigned_task.pid IS NOT NULL THEN now() END,
       worker_pid = assigned_task.pid,
       worker_process_name = 'worker-' || assigned_task.pid::text,
       worker_hostname = CASE WHEN assigned_task.pid IS NOT NULL THEN $8 END,
       -- The new token fences off every write of an earlier owner.
       claim_token = t.claim_token + 1, claimed_by_worker_id = $7, claimed_at = now(),
       next_retry_at = NULL, recovery_hold_until = NULL, updated_at = now()
  -- The planner does not know the length of the arrays, so it looks up each row by primary key.
  FROM unnest(ARRAY(SELECT id FROM assigned ORDER BY claim_order), ARRAY(SELECT pid FROM assigned ORDER BY claim_order))
       WITH ORDINALITY AS assigned_task(id, pid, claim_order)
 WHERE t.id = assigned_task.id
RETURNING {{ claimed_columns(t) }};

-- name: claim_chunk
-- Claim the best due tasks for one child; all become RUNNING. Like `claim`, for requests without caps and leases.
WITH due AS MATERIALIZED (
    SELECT task.id
      FROM unnest($1::text[], $2::integer[], $9::timestamptz[]) AS queue(queue_name, capacity, skip_before)
     CROSS JOIN LATERAL (
           {{ due_tasks(queue, $7, $8) }}
           ) AS task
     WHERE NOT EXISTS (SELECT
                         FROM horsies_queues AS q
                        WHERE q.queue_name = queue.queue_name AND q.paused_at IS NOT NULL)
     ORDER BY task.priority, task.enqueued_at, task.id
     LIMIT $3
)
UPDATE horsies_tasks AS t
   SET status = 'RUNNING', started_at = now(), claimed_at = now(), updated_at = now(), claimed_by_worker_id = $4,
       worker_hostname = $5, worker_pid = $6, worker_process_name = 'worker-' || $6::integer::text,
       claim_token = t.claim_token + 1, next_retry_at = NULL, recovery_hold_until = NULL
 WHERE t.id = ANY(ARRAY(SELECT id FROM due))
RETURNING {{ claimed_columns(t) }};

-- name: first_known
-- For each queue, a time before which the names of all due tasks are excluded ($2).
--
-- It lies up to $3 tasks of each priority and ten seconds before the oldest known task, or before now if there is none:
-- a task of a transaction that commits later than this search must not be hidden until the next one.
SELECT queue.queue_name,
       greatest(coalesce(known.at, now()) - interval '10 seconds',
                (SELECT max(recent.enqueued_at)
                   FROM ({{ priority_levels(queue) }}
                         SELECT due.enqueued_at
                           FROM level
                          CROSS JOIN LATERAL (
                                SELECT t.enqueued_at
                                  FROM horsies_tasks AS t
                                 WHERE t.status = 'PENDING' AND t.queue_name = queue.queue_name
                                   AND t.priority = level.priority AND t.enqueued_at < coalesce(known.at, now())
                                 ORDER BY t.enqueued_at DESC
                                OFFSET $3::bigint
                                 LIMIT 1) AS due) AS recent)) AS at
  FROM pg_catalog.unnest($1::text[]) AS queue(queue_name)
 CROSS JOIN LATERAL (
       SELECT min(task.enqueued_at) AS at
         FROM ({{ priority_levels(queue) }}
               SELECT due.enqueued_at
                 FROM level
                CROSS JOIN LATERAL (
                      SELECT t.enqueued_at
                        FROM horsies_tasks AS t
                       WHERE t.status = 'PENDING' AND t.queue_name = queue.queue_name AND t.priority = level.priority
                         AND t.enqueued_at <= now() AND t.task_name <> ALL($2::text[])
                       ORDER BY t.enqueued_at, t.id
                       LIMIT 1) AS due) AS task) AS known;

-- name: start
-- Mark claimed tasks RUNNING, each in the child with the given pid. A task is not returned if its claim or lease is
-- lost or its good_until has passed.
WITH locked AS (
    {{ claimed_tasks_with_pids('CLAIMED') }}
     WHERE (t.claim_expires_at IS NULL OR t.claim_expires_at > now())
       AND (t.good_until IS NULL OR t.good_until > now())
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), started AS (
    UPDATE horsies_tasks AS t
       SET status = 'RUNNING', claimed = false, claim_expires_at = NULL, started_at = now(), worker_hostname = $5,
           worker_pid = locked.pid, worker_process_name = 'worker-' || locked.pid::text, updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.claim_token
)
SELECT id, claim_token FROM started;

-- name: record_children
-- Record the children that RUNNING tasks were sent to, if they were claimed for others. Rows locked by others are left
-- alone: the end of the task records the child too, and claims must not wait for it.
WITH locked AS (
    {{ claimed_tasks_with_pids('RUNNING') }}
     ORDER BY t.id
       FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE horsies_tasks AS t
   SET worker_pid = locked.pid, worker_process_name = 'worker-' || locked.pid::text, updated_at = now()
  FROM locked
 WHERE t.id = locked.id;

-- name: expire
-- End claimed tasks whose good_until has passed, each with the result given. The condition on `messages`, here and
-- below, is always true: PostgreSQL does not run a CTE that only selects unless something reads it.
WITH locked AS (
    SELECT t.id, input.document
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::text[]))
           AS input(id, claim_token, worker_id, document)
      {{ join_claims('CLAIMED') }}
     WHERE t.good_until <= now()
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'EXPIRED', claimed = false, claim_expires_at = NULL, result = locked.document::jsonb,
           error_code = 'TASK_EXPIRED', terminal_at = now(), updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.claim_token, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), outbox AS (
    {{ insert_outbox(ended WHERE is_workflow_task) }}
), notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM ({{ task_done_messages(ended) }}) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id, claim_token FROM ended WHERE (SELECT messages FROM notified) >= 0;

-- name: release
-- Release tasks whose code never started: no attempt, no retry, same place in the queue; $6 counts a lost start. A task
-- whose workflow was paused or cancelled in the meantime is cancelled instead.
WITH locked AS (
    SELECT t.id
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[])) AS input(id, claim_token, worker_id)
      {{ join_claims($4) }}
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), released AS (
    UPDATE horsies_tasks AS t
       SET status = CASE WHEN t.no_restart IS NULL THEN 'PENDING' ELSE 'CANCELLED' END,
           result = $5::text::jsonb -> t.no_restart,
           error_code = CASE WHEN t.no_restart IS NOT NULL THEN 'TASK_CANCELLED' END,
           terminal_at = CASE WHEN t.no_restart IS NOT NULL THEN now() END,
           claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL, started_at = NULL,
           worker_hostname = NULL, worker_pid = NULL, worker_process_name = NULL, kill_requested = false,
           lost_starts = t.lost_starts + $6::boolean::integer, updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.claim_token, t.status, t.queue_name, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), outbox AS (
    {{ insert_outbox(released WHERE is_workflow_task AND status = 'CANCELLED') }}
), notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT DISTINCT 'horsies_task_new', left(queue_name, 255) FROM released WHERE status = 'PENDING'
             UNION ALL
            {{ task_done_messages(released WHERE status = 'CANCELLED') }}) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id, claim_token, status FROM released WHERE (SELECT messages FROM notified) >= 0;

-- name: owned
-- Tasks that this worker has claimed or is running.
SELECT id, claim_token, status
  FROM horsies_tasks
 WHERE claimed_by_worker_id = $1 AND status IN ('CLAIMED', 'RUNNING');

-- name: finish
-- Fail or retry running tasks and record the attempt of each. A task whose claim was lost is not returned. A task with a
-- `retry_delay_s` is retried if retries are left and it would start before good_until; if its workflow was paused or
-- cancelled in the meantime, it is cancelled instead.
WITH input AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::text[]),
                  (SELECT $5::text[]), (SELECT $6::text[]), (SELECT $7::text[]), (SELECT $8::text[]),
                  (SELECT $9::double precision[]), (SELECT $10::boolean[]), (SELECT $11::text[]),
                  (SELECT $12::integer[]))
           AS input(id, claim_token, worker_id, outcome, document, error_code, error_message, failed_reason,
                    retry_delay_s, is_crash, final_code, pid)
), locked AS MATERIALIZED (
    SELECT input.id, input.claim_token, input.worker_id, input.outcome, input.document, input.error_code,
           input.error_message, input.failed_reason, input.is_crash, input.final_code, t.attempts + 1 AS attempt,
           t.no_restart, t.started_at, t.worker_hostname, coalesce(input.pid, t.worker_pid) AS worker_pid,
           coalesce('worker-' || input.pid::text, t.worker_process_name) AS worker_process_name,
           t.is_workflow_task, t.workflow_id, t.workflow_task_index, due.at AS due_at, t.retry_count + 1 AS retry_count,
           -- FAILED comes before CANCELLED: a task that would not be retried anyway keeps its own error.
           CASE WHEN due.at IS NULL OR t.retry_count >= t.max_retries OR due.at >= t.good_until THEN 'FAILED'
                WHEN t.no_restart IS NOT NULL THEN 'CANCELLED'
                ELSE 'PENDING' END AS status
      FROM input
      {{ join_claims('RUNNING') }}
     CROSS JOIN LATERAL (SELECT now() + pg_catalog.make_interval(secs => input.retry_delay_s)) AS due(at)
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), decided AS (
    SELECT id, claim_token, worker_id, outcome, error_code, error_message, failed_reason, is_crash, attempt, started_at,
           worker_hostname, worker_pid, worker_process_name, is_workflow_task, workflow_id, workflow_task_index, due_at,
           retry_count, status, true AS has_run, false AS may_overlap,
           CASE status WHEN 'CANCELLED' THEN 'TASK_CANCELLED' ELSE coalesce(final_code, error_code) END AS final_code,
           CASE status WHEN 'CANCELLED' THEN $13::text::jsonb -> no_restart ELSE document::jsonb END AS result
      FROM locked
), {{ move_tasks(decided) }}, notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT channel, payload FROM messages
             UNION ALL
            SELECT 'horsies_events', event FROM pg_catalog.unnest($14::text[]) AS event) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id, claim_token, status
  FROM (SELECT id, claim_token, status FROM ended UNION ALL SELECT id, claim_token, status FROM requeued) AS finished
 WHERE (SELECT messages FROM notified) >= 0;

-- name: complete
-- Like `finish`, for tasks that completed: no decision is needed, so each row is read only once. Returns how many were
-- stored; `attempts_by_claim` tells which. A token belongs to one claim of a row, so one owner need not be named for each.
-- Without pids ($5) the tasks ran where they were started.
WITH input AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $4::text[]), (SELECT $5::integer[]))
           AS input(id, claim_token, document, pid)
     -- The UPDATE locks the rows in this order, like every multi-row write.
     ORDER BY id
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'COMPLETED', terminal_at = now(), attempts = t.attempts + 1, completed_at = now(), failed_at = NULL,
           failed_reason = NULL, error_code = NULL, result = input.document::jsonb,
           worker_pid = coalesce(input.pid, t.worker_pid),
           worker_process_name = coalesce('worker-' || input.pid::text, t.worker_process_name), updated_at = now()
      FROM input
     WHERE t.id = input.id AND t.claim_token = input.claim_token AND t.claimed_by_worker_id = ANY($3::uuid[])
       AND t.status || '' = 'RUNNING'
    RETURNING t.id, t.claim_token, t.attempts, t.started_at, t.claimed_by_worker_id, t.worker_hostname, t.worker_pid,
              t.worker_process_name, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, started_at, finished_at, worker_id,
                                       worker_hostname, worker_pid, worker_process_name)
    SELECT id, attempts, claim_token, 'COMPLETED', started_at, now(), claimed_by_worker_id, worker_hostname, worker_pid,
           worker_process_name
      FROM ended
), outbox AS (
    {{ insert_outbox(ended WHERE is_workflow_task) }}
), notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM ({{ task_done_messages(ended) }}
             UNION ALL
            SELECT 'horsies_events', event FROM pg_catalog.unnest($6::text[]) AS event) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT count(*)::integer AS stored FROM ended WHERE (SELECT messages FROM notified) >= 0;

-- name: attempts_by_claim
-- Recorded attempts of these claims.
SELECT a.task_id AS id, a.claim_token, a.outcome, a.error_code
  FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[])) AS input(id, claim_token)
  JOIN horsies_task_attempts AS a ON a.task_id = input.id AND a.claim_token = input.claim_token;

-- name: current_states
-- Current owner and status of tasks whose outcome was refused.
SELECT id, status, claim_token, claimed_by_worker_id AS worker_id, claimed_at, started_at, terminal_at, error_code
  FROM horsies_tasks
 WHERE id = ANY((SELECT $1::uuid[])::uuid[]);
