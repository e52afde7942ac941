-- name: summaries
-- Tasks in a list.
SELECT {{ summary_columns() }}
  FROM horsies_tasks AS t
  LEFT JOIN LATERAL ({{ last_heartbeat() }}) AS heartbeat ON t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id = ANY ($1::uuid[])
 ORDER BY t.id DESC;

-- name: detail
SELECT {{ summary_columns() }},
       t.args::text AS args_json, t.kwargs::text AS kwargs_json, t.result::text AS result_json, t.failed_reason,
       t.claim_token, t.claim_expires_at, t.recovery_hold_until, t.overlap_possible, t.no_restart,
       t.task_options::text AS options_json, t.idempotency_key, t.retry_of
  FROM horsies_tasks AS t
  LEFT JOIN LATERAL ({{ last_heartbeat() }}) AS heartbeat ON t.status IN ('CLAIMED', 'RUNNING')
 WHERE t.id = $1;

-- name: heartbeats
-- The newest heartbeats of a task, of all its claims.
SELECT role, sender_id, claim_token, sent_at AS at, now() - sent_at AS age
  FROM horsies_heartbeats
 WHERE task_id = $1
 ORDER BY sent_at DESC, id DESC
 LIMIT $2;

-- name: payload_previews
-- Arguments of tasks, up to $2 bytes, with the parameters from the newest catalog. pg_column_size does not read values that
-- are stored out of line.
SELECT id, size, CASE WHEN size <= $2 THEN args::text END AS args_json,
       CASE WHEN size <= $2 THEN kwargs::text END AS kwargs_json, known.parameters_json
  FROM (SELECT id, task_name, args, kwargs,
               pg_catalog.pg_column_size(args) + pg_catalog.pg_column_size(kwargs) AS size
          FROM horsies_tasks
         WHERE id = ANY ($1::uuid[])) AS payload
  LEFT JOIN (SELECT DISTINCT ON (task_name) task_name, params_schema::text AS parameters_json
               FROM horsies_task_catalog
              ORDER BY task_name, seen_at DESC) AS known USING (task_name);

-- name: parameters
-- The parameters of a task by name, from the newest catalog.
SELECT params_schema::text
  FROM horsies_task_catalog
 WHERE task_name = $1
 ORDER BY seen_at DESC
 LIMIT 1;

-- name: events
-- The newest events of a task, found with its index: `latest_events` would scan all events for a few matches.
SELECT id, at, kind, task_id, workflow_id, worker_id, claim_token, queue_name AS queue, evidence::text AS evidence_json
  FROM horsies_events
 WHERE task_id = $1
 ORDER BY at DESC, id DESC
 LIMIT $2;

-- name: wait_facts
-- What the claim of the PENDING task $1 depends on. $2 are the workers that respond; at most $3 tasks ahead of it are
-- counted, in the order and with the index of the claim.
WITH task AS (
    SELECT id, queue_name, priority, enqueued_at, next_retry_at, good_until
      FROM horsies_tasks
     WHERE id = $1 AND status = 'PENDING'
), serving AS (
    SELECT w.id, w.processes, w.last_heartbeat_at, w.id = ANY ($2::uuid[]) AS is_responsive
      FROM task
      JOIN horsies_workers AS w ON w.state IN ('starting', 'running') AND task.queue_name = ANY (w.queues)
), running AS (
    SELECT t.task_name, count(*) AS number
      FROM horsies_tasks AS t
     WHERE t.status = 'RUNNING' AND t.claimed_by_worker_id IN (SELECT id FROM serving WHERE is_responsive)
     GROUP BY t.task_name
), in_flight AS (
    SELECT count(*) FILTER (WHERE t.queue_name = task.queue_name) AS of_queue, count(*) AS of_cluster
      FROM task
     CROSS JOIN horsies_tasks AS t
     WHERE t.status IN ('CLAIMED', 'RUNNING')
       AND (t.status = 'RUNNING' OR t.claim_expires_at IS NULL OR t.claim_expires_at > now())
), limits AS (
    -- Anything but a number of up to 9 digits is ignored, as in the list of queues.
    SELECT substring(snapshot.queue_max_concurrency ->> task.queue_name FROM '^\d{1,9}$')::integer AS of_queue,
           snapshot.cluster_wide_cap                                                              AS of_cluster
      FROM task
     CROSS JOIN serving
     CROSS JOIN LATERAL (SELECT queue_max_concurrency, cluster_wide_cap
                           FROM horsies_worker_states
                          WHERE worker_id = serving.id
                          ORDER BY snapshot_at DESC
                          LIMIT 1) AS snapshot
     WHERE serving.is_responsive
     ORDER BY serving.last_heartbeat_at DESC
     LIMIT 1
)
SELECT task.queue_name AS queue,
       CASE WHEN greatest(task.enqueued_at, task.next_retry_at) > now()
            THEN greatest(task.enqueued_at, task.next_retry_at) - now() END AS due_in,
       task.next_retry_at IS NOT NULL                                      AS is_retry,
       coalesce(task.good_until <= now(), false)                           AS is_overdue,
       pause.paused_at IS NOT NULL                                         AS is_paused,
       pause.paused_by, pause.pause_reason,
       (SELECT count(*)::integer
          FROM (SELECT
                  FROM horsies_tasks AS t
                 WHERE t.status = 'PENDING' AND t.queue_name = task.queue_name
                   AND (t.priority, t.enqueued_at, t.id) < (task.priority, task.enqueued_at, task.id)
                   AND t.enqueued_at <= now()
                 LIMIT $3) AS earlier)                                     AS ahead,
       (SELECT count(*)::integer FROM serving WHERE is_responsive)         AS workers,
       (SELECT count(*)::integer FROM serving WHERE NOT is_responsive)     AS silent_workers,
       (SELECT coalesce(sum(processes), 0)::integer FROM serving WHERE is_responsive) AS slots,
       (SELECT coalesce(pg_catalog.jsonb_object_agg(task_name, number), '{}')::text FROM running) AS running,
       in_flight.of_queue::integer   AS queue_in_flight,
       limits.of_queue               AS queue_limit,
       in_flight.of_cluster::integer AS cluster_in_flight,
       limits.of_cluster             AS cluster_limit
  FROM task
 CROSS JOIN in_flight
  LEFT JOIN limits ON true
  LEFT JOIN horsies_queues AS pause ON pause.queue_name = task.queue_name;
