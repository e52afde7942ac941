-- Parts that several statements share; `source` is a table or CTE, with a condition where not all of its rows count.

-- fragment: priority_levels(queue)
-- The priorities of the PENDING tasks of one queue, ascending and last NULL.
WITH RECURSIVE level(priority) AS (
    (SELECT t.priority
       FROM horsies_tasks AS t
      WHERE t.status = 'PENDING' AND t.queue_name = {{ queue }}.queue_name
      ORDER BY t.priority
      LIMIT 1)
    UNION ALL
    SELECT (SELECT t.priority
              FROM horsies_tasks AS t
             WHERE t.status = 'PENDING' AND t.queue_name = {{ queue }}.queue_name AND t.priority > level.priority
             ORDER BY t.priority
             LIMIT 1)
      FROM level
     WHERE level.priority IS NOT NULL
)

-- fragment: due_tasks(queue, only, except)
-- Lock the best due tasks of one queue, at most its capacity; `only` and `except` are arrays of task names, or NULL.
-- All due tasks before `skip_before` of the queue are known to be excluded and not read again.
--
-- A loose index scan goes from one priority to the next along the claim index. It reads only due rows: it neither sorts
-- the backlog nor reads delayed tasks.
{{ priority_levels({{ queue }}) }}
SELECT due.*
  FROM level
 CROSS JOIN LATERAL (
       SELECT t.id, t.priority, t.enqueued_at, t.is_workflow_task
         FROM horsies_tasks AS t
        WHERE t.status = 'PENDING' AND t.queue_name = {{ queue }}.queue_name AND t.priority = level.priority
          AND t.enqueued_at <= now()
          AND t.enqueued_at >= coalesce({{ queue }}.skip_before, '-infinity')
          AND (t.next_retry_at IS NULL OR t.next_retry_at <= now())
          AND (t.good_until IS NULL OR t.good_until > now())
          AND ({{ only }}::text[] IS NULL OR t.task_name = ANY({{ only }}))
          AND ({{ except }}::text[] IS NULL OR t.task_name <> ALL({{ except }}))
        ORDER BY t.enqueued_at, t.id
        LIMIT {{ queue }}.capacity
          -- Concurrent claims take different rows instead of waiting for each other.
          FOR UPDATE SKIP LOCKED) AS due
 -- Stops the scan, and the locking of rows, once the queue's capacity is reached.
 LIMIT {{ queue }}.capacity

-- fragment: claimed_columns(task)
-- What a worker needs to run a task. `details` is NULL for the first attempt of a task without options.
{{ task }}.id, {{ task }}.claim_token, {{ task }}.task_name, {{ task }}.queue_name, {{ task }}.args::text AS args,
{{ task }}.kwargs::text AS kwargs, {{ task }}.sent_at,
CASE WHEN {{ task }}.retry_count + {{ task }}.attempts + {{ task }}.crash_count + {{ task }}.lost_starts > 0
       OR {{ task }}.is_workflow_task OR {{ task }}.context IS NOT NULL OR {{ task }}.good_until IS NOT NULL OR {{ task }}.overlap_possible
       OR {{ task }}.task_options <> '{}' OR {{ task }}.flags <> '{}'
     THEN pg_catalog.jsonb_build_object(
              'context', {{ task }}.context, 'task_options', {{ task }}.task_options, 'flags', {{ task }}.flags,
              'retry_count', {{ task }}.retry_count, 'attempts', {{ task }}.attempts,
              'crash_count', {{ task }}.crash_count, 'lost_starts', {{ task }}.lost_starts, 'good_until', nullif({{ task }}.good_until, 'infinity'),
              'overlap_possible', {{ task }}.overlap_possible, 'is_workflow_task', {{ task }}.is_workflow_task)::text
END AS details, {{ task }}.worker_pid, {{ task }}.priority, {{ task }}.enqueued_at

-- fragment: join_claims(status)
-- The guard of writes to claimed tasks: joins the task `t` of each row of `input`, unless its claim is lost or it has
-- another status. `status || ''` keeps the planner from joining on the owner index for the whole batch. Arrays are behind
-- a subquery, so that it does not know their length and looks up each row by primary key.
JOIN horsies_tasks AS t ON t.id = input.id AND t.claim_token = input.claim_token
                       AND t.claimed_by_worker_id = input.worker_id AND t.status || '' = {{ status }}

-- fragment: claimed_tasks_with_pids(status)
-- The tasks `t` of the claims in $1 to $3, each with its pid in $4.
SELECT t.id, input.pid
  FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::integer[]))
       AS input(id, claim_token, worker_id, pid)
  {{ join_claims({{ status }}) }}

-- fragment: insert_attempts(source)
-- Record the attempt of each task; `status` is the new status of the task.
INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at,
                                   error_code, error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                   worker_process_name)
SELECT id, attempt, claim_token, outcome, status = 'PENDING', started_at, now(), error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
  FROM {{ source }}

-- fragment: unfinished_tasks_of(runs)
-- Lock the unfinished tasks `t` of these runs, in the order of their ids, after the CTE `locked_nodes`.
FROM horsies_tasks AS t
WHERE t.workflow_id = ANY({{ runs }}) AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING')
  -- Always true; makes PostgreSQL lock the nodes first, as every statement does.
  AND (SELECT count(*) FROM locked_nodes) >= 0
ORDER BY t.id
  FOR NO KEY UPDATE

-- fragment: unfinished_as_shown(ids, statuses, tokens)
-- Lock the unfinished tasks `t` that still have the status and the claim token shown to the operator.
FROM unnest((SELECT {{ ids }}::uuid[]), (SELECT {{ statuses }}::text[]), (SELECT {{ tokens }}::bigint[]))
     AS input(id, status, claim_token)
JOIN horsies_tasks AS t ON t.id = input.id AND t.claim_token = input.claim_token AND t.status || '' = input.status
WHERE t.terminal_at IS NULL
ORDER BY t.id
  FOR NO KEY UPDATE OF t

-- fragment: node_states(is_part)
-- Nodes `n`, each with the outcome of its task or sub-workflow if the node does not have it yet. is_task_gone: the node
-- waits for a task or sub-workflow that no longer exists. LIMIT in the lateral joins makes the planner look up each by
-- primary key, regardless of statistics. In a part of a run, PENDING nodes have the statuses of their dependencies.
SELECT n.workflow_id, n.id, n.task_index, n.node_id, n.dependencies,
       CASE WHEN n.status = 'PENDING' AND n.workflow_ctx_from IS NOT NULL
            THEN ARRAY(SELECT d.task_index
                         FROM horsies_workflow_tasks AS d
                        WHERE d.workflow_id = n.workflow_id AND d.task_index = ANY(n.dependencies)
                          AND d.node_id = ANY(n.workflow_ctx_from)) END AS context_dependencies,
       n.join_type, n.min_success, n.allow_failed_deps, n.is_subworkflow, n.sub_workflow_id,
       CASE WHEN t.terminal_at IS NOT NULL THEN t.status END AS task_status, t.no_restart,
       CASE WHEN t.result IS NULL THEN 'none'
            WHEN jsonb_typeof(t.result) = 'object' AND t.result ? 'ok'::text THEN 'ok'
            WHEN jsonb_typeof(t.result -> 'err'::text) = 'object' THEN 'err'
            ELSE 'invalid' END AS result_kind,
       CASE WHEN sub_run.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN sub_run.status END
           AS sub_workflow_status,
       n.status IN ('ENQUEUED', 'RUNNING') AND t.id IS NULL AND sub_run.id IS NULL AS is_task_gone,
       -- A sub-workflow with a pending start request counts as enqueued.
       CASE WHEN n.status = 'READY' AND n.is_subworkflow
                 AND EXISTS (SELECT FROM horsies_workflow_outbox AS o WHERE o.task_id = n.id) THEN 'ENQUEUED'
            ELSE n.status END AS status,
       CASE WHEN {{ is_part }} AND n.status = 'PENDING'
            THEN ARRAY(SELECT dependency.status
                         FROM pg_catalog.unnest(n.dependencies) WITH ORDINALITY AS input(task_index, position)
                        CROSS JOIN LATERAL (
                              SELECT d.status
                                FROM horsies_workflow_tasks AS d
                               WHERE d.workflow_id = n.workflow_id AND d.task_index = input.task_index
                               LIMIT 1) AS dependency
                        ORDER BY input.position) END AS dependency_statuses
  FROM horsies_workflow_tasks AS n
  LEFT JOIN LATERAL (
       SELECT t.id, t.status, t.terminal_at, t.no_restart, t.result
         FROM horsies_tasks AS t
        WHERE t.id = n.task_id AND n.status IN ('ENQUEUED', 'RUNNING')
        LIMIT 1) AS t ON true
  LEFT JOIN LATERAL (
       SELECT sub_run.id, sub_run.status
         FROM horsies_workflows AS sub_run
        WHERE sub_run.id = n.sub_workflow_id AND n.status = 'RUNNING'
        LIMIT 1) AS sub_run ON true

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

-- fragment: report_ended(source)
-- The end of a statement: let the runs of ended tasks advance, wake those who wait for their results, return their ids.
outbox AS (
    {{ insert_outbox({{ source }} WHERE is_workflow_task) }}
), notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM ({{ task_done_messages({{ source }}) }}) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id FROM {{ source }} WHERE (SELECT messages FROM notified) >= 0

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

-- fragment: schedule_is_running(schedule)
-- Whether the task or run of an earlier slot has not ended. It reads the newest fired runs only.
EXISTS (SELECT
          FROM (SELECT fired.task_id, fired.workflow_id
                  FROM horsies_schedule_runs AS fired
                 WHERE fired.schedule_name = {{ schedule }}.schedule_name AND fired.outcome = 'fired'
                   AND fired.kind <> 'manual'
                 ORDER BY fired.slot_at DESC
                 LIMIT 20) AS run
          LEFT JOIN horsies_tasks AS task ON task.id = run.task_id
          LEFT JOIN horsies_workflows AS workflow ON workflow.id = run.workflow_id
         WHERE task.status IN ('PENDING', 'CLAIMED', 'RUNNING')
            OR workflow.status IN ('PENDING', 'RUNNING', 'PAUSED'))

-- fragment: schedule_failures(schedule)
-- How many of the newest ended slots failed in a row, since the schedule was resumed.
(SELECT count(*)::integer
   FROM (SELECT bool_and(ended.is_failed) OVER (ORDER BY ended.slot_at DESC) AS failed_so_far
           FROM (SELECT run.slot_at, coalesce(task.status, workflow.status) = 'FAILED' AS is_failed
                   FROM horsies_schedule_runs AS run
                   LEFT JOIN horsies_tasks AS task ON task.id = run.task_id
                   LEFT JOIN horsies_workflows AS workflow ON workflow.id = run.workflow_id
                  WHERE run.schedule_name = {{ schedule }}.schedule_name AND run.outcome = 'fired' AND run.kind = 'clock'
                    AND run.fired_at > coalesce({{ schedule }}.resumed_at, '-infinity')
                    AND coalesce(task.status, workflow.status) IN ('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED')
                  ORDER BY run.slot_at DESC
                  LIMIT 1000) AS ended) AS series
  WHERE series.failed_so_far)

-- fragment: due_columns(schedule)
-- A schedule to decide about; `schedule_history` completes those whose policy uses their history.
{{ schedule }}.schedule_name, {{ schedule }}.call ->> 'plan'::text AS plan,
{{ schedule }}.definition::text AS definition, {{ schedule }}.next_run_at, {{ schedule }}.last_slot_at,
{{ schedule }}.waiting_slot_at, {{ schedule }}.anchor_at,
false AS is_running, 0 AS failures, now() AS now,
(({{ schedule }}.definition ->> 'overlap'::text <> 'allow') IS TRUE
 OR {{ schedule }}.definition ->> 'pause_after_failures'::text IS NOT NULL) AS uses_history

-- fragment: is_defined(schedule, live_s)
-- Whether a participant of its owner that was seen in the last seconds defines a schedule.
EXISTS (SELECT
          FROM horsies_schedule_participants AS p
         WHERE p.owner = {{ schedule }}.owner AND {{ schedule }}.schedule_name = ANY(p.names)
           AND p.seen_at > now() - make_interval(secs => {{ live_s }}))

-- fragment: skip_waiting(schedules, reason)
-- Record the waiting slots of schedules as skipped.
UPDATE horsies_schedule_runs AS run
   SET outcome = 'skipped', reason = '{{ reason }}'
  FROM {{ schedules }} AS s
 WHERE run.schedule_name = s.schedule_name AND run.slot_at = s.waiting_slot_at AND run.kind <> 'manual'
   AND run.outcome = 'waiting'
