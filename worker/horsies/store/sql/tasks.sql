-- name: enqueue
-- Store one task in a transaction of its own; no row back means that its id or its idempotency key is taken.
-- A transaction that notifies holds a lock of the whole cluster until its commit is on disk, so of all that send to a
-- queue at once only one does, the one whose turn it is; the others are told that nobody has heard of their task.
WITH turn AS MATERIALIZED (
    SELECT $8::double precision = 0 AND pg_try_advisory_xact_lock(horsies_lock_key('announce/' || $3)) AS is_ours,
           set_config('horsies.announce', 'off', true)
)
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                           max_retries, task_options, flags, idempotency_key, command_sha, enqueue_sha)
SELECT $1, $2, $3::text, $4, $5::text::jsonb, $6::text::jsonb, $7, clock_timestamp() + make_interval(secs => $8), $9,
       $10, $11::text::jsonb, $12::text::jsonb, $13, $14, $15
  FROM turn
ON CONFLICT DO NOTHING
RETURNING (SELECT count(pg_notify('horsies_task_new', $3)) = 1 FROM turn WHERE turn.is_ours) AS is_announced;

-- name: enqueue_compact
-- The same for a task that is due at once, has no key and no end, on a session where the trigger is off. Looking for
-- conflicts beforehand would cost every send a tenth of the statement; who stores something again meets the constraint.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, max_retries, task_options, flags,
                           enqueue_sha)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::timestamptz, $8, $9, $10, $11)
RETURNING CASE WHEN pg_try_advisory_xact_lock(horsies_lock_key('announce/' || queue_name))
               THEN pg_notify('horsies_task_new', queue_name) IS NOT NULL
               ELSE false
           END AS is_announced;

-- name: enqueue_without_notify
-- The same without a word.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, max_retries, task_options, flags,
                           enqueue_sha)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::timestamptz, $8, $9, $10, $11);

-- name: enqueue_in_transaction
-- The same in a transaction of the caller's, which may last: the trigger announces at its commit. JSON travels as text,
-- so that a codec which the caller may have set on the connection changes nothing.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                           max_retries, task_options, flags, idempotency_key, command_sha, enqueue_sha)
VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7, clock_timestamp() + make_interval(secs => $8), $9,
        $10, $11::text::jsonb, $12::text::jsonb, $13, $14, $15)
ON CONFLICT DO NOTHING
RETURNING true AS is_announced;

-- name: notify_queues
SELECT count(pg_notify('horsies_task_new', queue_name)) > 0 AS is_announced FROM unnest($1::text[]) AS queue_name;

-- name: conflicts
-- The rows that kept `enqueue` from storing a task.
SELECT id, enqueue_sha, command_sha, idempotency_key IS NOT DISTINCT FROM $3 AND task_name = $2 AS has_same_key
  FROM horsies_tasks
 WHERE id = $1
 UNION
SELECT id, enqueue_sha, command_sha, true
  FROM horsies_tasks
 WHERE task_name = $2 AND idempotency_key = $3;

-- name: enqueue_many
-- Store tasks that differ in id, arguments and fingerprint only; each of these comes as one text, a value a line. What
-- they share is read once.
INSERT INTO horsies_tasks (id, args, kwargs, enqueue_sha, task_name, queue_name, priority, sent_at, enqueued_at,
                           good_until, max_retries, task_options, flags)
SELECT row.id, row.args::jsonb, row.kwargs::jsonb, row.sha, $5, $6, $7, $8,
       (SELECT clock_timestamp() + make_interval(secs => $9)), $10, $11, (SELECT $12::text::jsonb),
       (SELECT $13::text::jsonb)
  FROM unnest(string_to_array($1, E'\n')::uuid[], string_to_array($2, E'\n'), string_to_array($3, E'\n'),
              string_to_array($4, E'\n')) AS row(id, args, kwargs, sha);

-- name: results
-- How the given tasks stand, with the stored document of those that have one.
SELECT id, task_name, status, result::text AS document
  FROM horsies_tasks
 WHERE id = ANY($1::uuid[]);

-- name: info
SELECT id, task_name, status, queue_name, priority, retry_count, max_retries, crash_count, flags::text AS flags,
       sent_at, enqueued_at, next_retry_at, claimed_at, started_at, completed_at, failed_at, good_until,
       claimed_by_worker_id AS worker_id, worker_hostname, worker_pid, worker_process_name, error_code, workflow_id,
       retry_of, failed_reason, CASE WHEN $2::boolean THEN result::text END AS document
  FROM horsies_tasks
 WHERE id = $1;

-- name: attempts
SELECT task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at, error_code, error_message,
       failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_task_attempts
 WHERE task_id = $1
 ORDER BY attempt DESC;
