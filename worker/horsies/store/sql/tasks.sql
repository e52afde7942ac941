-- name: enqueue
-- Insert one task: $1 to $15 are a `TaskSendPayload`, $16 is a `Notify` mode. Returns no row if its id or idempotency key
-- is taken. The insert trigger notifies workers at commit, unless `horsies.announce` is off. With 'unless contended', of
-- all concurrent sends to a queue only the one that gets the advisory lock notifies. JSON is passed as text, so that a
-- type codec which the caller set on a connection has no effect.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                           max_retries, task_options, flags, idempotency_key, command_sha, enqueue_sha)
VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7,
        clock_timestamp() + pg_catalog.make_interval(secs => coalesce($9::double precision, 0)), $8, $12,
        $10::text::jsonb, $11::text::jsonb, $13, $14, $15)
ON CONFLICT DO NOTHING
RETURNING -- evaluated before the trigger, which fires at the end of the statement
          set_config('horsies.announce',
                     CASE WHEN $16 = 'always' THEN 'on'
                          WHEN $16 = 'unless contended'
                               AND pg_try_advisory_xact_lock(horsies_lock_key('announce/' || queue_name)) THEN 'on'
                          ELSE 'off'
                      END,
                     true) = 'on' AS is_notified;

-- name: notify_queues
-- Notify the workers of these queues.
SELECT pg_catalog.count(pg_notify('horsies_task_new', left(queue_name, 255))) > 0 AS is_notified
  FROM pg_catalog.unnest($1::text[]) AS queue_name;

-- name: conflicts
-- Rows with the id or the idempotency key of a task that `enqueue` did not insert. UNION in place of OR, so that each
-- half uses its own unique index.
SELECT id, enqueue_sha, command_sha, idempotency_key IS NOT DISTINCT FROM $3 AND task_name = $2 AS has_same_key
  FROM horsies_tasks
 WHERE id = $1
 UNION
SELECT id, enqueue_sha, command_sha, true
  FROM horsies_tasks
 WHERE task_name = $2 AND idempotency_key = $3;

-- name: enqueue_many
-- Insert tasks that differ only in id, arguments and fingerprint; each of these four comes as one text with a value per
-- line. The subqueries evaluate the shared values once.
INSERT INTO horsies_tasks (id, args, kwargs, enqueue_sha, task_name, queue_name, priority, sent_at, enqueued_at,
                           good_until, max_retries, task_options, flags)
SELECT row.id, row.args::jsonb, row.kwargs::jsonb, row.sha, $5, $6, $7, $8,
       (SELECT clock_timestamp() + pg_catalog.make_interval(secs => $9)), $10, $11, (SELECT $12::text::jsonb),
       (SELECT $13::text::jsonb)
  FROM unnest(string_to_array($1, E'\n')::uuid[], string_to_array($2, E'\n'), string_to_array($3, E'\n'),
              string_to_array($4, E'\n')) AS row(id, args, kwargs, sha);

-- name: results
-- Status of these tasks, with the stored result of those that have one. The ids are one comma-separated text,
-- because the driver encodes an array more slowly.
SELECT id::text AS id, task_name, status, result::text AS document
  FROM horsies_tasks
 WHERE id = ANY(string_to_array($1, ',')::uuid[]);

-- name: info
-- One task; with $2 its stored result too, with $3 its failure reason. Its attempts are a statement of their own.
SELECT id::text AS task_id, task_name, status, queue_name, priority, retry_count, max_retries, crash_count,
       flags::text AS flags, sent_at, enqueued_at, next_retry_at, claimed_at, started_at, completed_at, failed_at,
       good_until, claimed_by_worker_id::text AS worker_id, worker_hostname, worker_pid, worker_process_name,
       error_code, workflow_id::text AS workflow_id, retry_of::text AS retry_of,
       CASE WHEN $2::boolean THEN result::text END AS result,
       CASE WHEN $3::boolean THEN failed_reason END AS failed_reason, NULL AS attempts
  FROM horsies_tasks
 WHERE id = $1;

-- name: attempts
-- Finished attempts of a task, newest first.
SELECT task_id::text AS task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at, error_code,
       error_message, failed_reason, worker_id::text AS worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_task_attempts
 WHERE task_id = $1
 ORDER BY attempt DESC;

-- name: pause_queue
-- Stop claims from this queue. Returns no row if it was already paused.
INSERT INTO horsies_queues AS q (queue_name, paused_at, paused_by, pause_reason, updated_at)
VALUES ($1, now(), $2, $3, now())
ON CONFLICT (queue_name) DO UPDATE
   SET paused_at = now(), paused_by = $2, pause_reason = $3, updated_at = now()
 WHERE q.paused_at IS NULL
RETURNING q.queue_name;

-- name: resume_queue
-- Delete the pause; a queue without a row is not paused.
DELETE FROM horsies_queues
 WHERE queue_name = $1 AND paused_at IS NOT NULL
RETURNING queue_name;

-- name: is_queue_known
-- Whether a live worker serves this queue or a task is PENDING in it.
SELECT EXISTS (SELECT FROM horsies_workers
                WHERE state IN ('starting', 'running', 'draining') AND $1 = ANY(queues))
    OR EXISTS (SELECT FROM horsies_tasks WHERE status = 'PENDING' AND queue_name = $1) AS is_known;
