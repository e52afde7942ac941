-- name: list
-- Every queue that a task, a worker or a pause mentions. Pending and owned tasks are counted with their partial
-- indexes. Failed tasks are counted exactly; of the other tasks finished in the last minute at most $1 are counted, and
-- the number is extrapolated. $2 are the workers that respond.
WITH pending AS (
    SELECT queue_name,
           count(*) FILTER (WHERE enqueued_at <= now())         AS pending,
           count(*) FILTER (WHERE enqueued_at > now())          AS delayed,
           min(enqueued_at) FILTER (WHERE enqueued_at <= now()) AS oldest_due_at,
           min(enqueued_at) FILTER (WHERE enqueued_at > now())  AS next_due_at
      FROM horsies_tasks
     WHERE status = 'PENDING'
     GROUP BY queue_name
), owned AS (
    SELECT queue_name,
           count(*) FILTER (WHERE status = 'CLAIMED') AS claimed,
           count(*) FILTER (WHERE status = 'RUNNING') AS running
      FROM horsies_tasks
     WHERE status IN ('CLAIMED', 'RUNNING')
     GROUP BY queue_name
), newest AS MATERIALIZED (
    SELECT queue_name, status, terminal_at
      FROM horsies_tasks
     WHERE terminal_at > now() - interval '1 minute'
     ORDER BY terminal_at DESC
     LIMIT $1
), extrapolation AS (
    SELECT count(*) >= $1 AS is_needed, 60.0 / greatest(extract(epoch FROM now() - min(terminal_at)), 0.001) AS factor
      FROM newest
), finished AS (
    SELECT queue_name, is_needed AS is_estimate,
           round(count(*)::numeric * CASE WHEN is_needed THEN factor ELSE 1 END)::bigint AS not_failed
      FROM newest CROSS JOIN extrapolation
     WHERE status <> 'FAILED'
     GROUP BY queue_name, is_needed, factor
), failed AS (
    SELECT queue_name, count(*) AS failed
      FROM horsies_tasks
     WHERE status = 'FAILED' AND terminal_at > now() - interval '1 minute'
     GROUP BY queue_name
), worker AS (
    SELECT id, queues, last_heartbeat_at,
           state IN ('starting', 'running') AND id = ANY ($2::uuid[]) AS is_serving
      FROM horsies_workers
     WHERE state <> 'stopped'
     ORDER BY last_heartbeat_at DESC
     LIMIT 1000
), served AS (
    SELECT queue_name, count(*) FILTER (WHERE is_serving) AS workers
      FROM worker CROSS JOIN LATERAL pg_catalog.unnest(queues) AS queue_name
     GROUP BY queue_name
), configured AS (
    SELECT DISTINCT ON (queue_name) queue_name,
           -- Anything but a number of up to 9 digits is ignored: one malformed row must not break the whole list.
           substring(snapshot.queue_priorities ->> queue_name FROM '^\d{1,9}$')::integer      AS priority,
           substring(snapshot.queue_max_concurrency ->> queue_name FROM '^\d{1,9}$')::integer AS max_concurrency
      FROM worker
     CROSS JOIN LATERAL (SELECT queue_priorities, queue_max_concurrency
                           FROM horsies_worker_states
                          WHERE worker_id = worker.id
                          ORDER BY snapshot_at DESC
                          LIMIT 1) AS snapshot
     CROSS JOIN LATERAL pg_catalog.unnest(worker.queues) AS queue_name
     ORDER BY queue_name, worker.last_heartbeat_at DESC
), known AS (
    SELECT queue_name FROM pending UNION SELECT queue_name FROM owned UNION SELECT queue_name FROM finished
    UNION SELECT queue_name FROM failed
    UNION SELECT queue_name FROM served UNION SELECT queue_name FROM horsies_queues WHERE paused_at IS NOT NULL
)
SELECT queue_name                                    AS name,
       -- An app without configured queues has one queue, of the lowest priority.
       coalesce(configured.priority, CASE WHEN served.workers > 0 THEN 100 END) AS priority,
       configured.max_concurrency,
       pause.paused_at, pause.paused_by, pause.pause_reason,
       coalesce(pending.pending, 0)::integer         AS pending,
       coalesce(pending.delayed, 0)::integer         AS delayed,
       coalesce(owned.claimed, 0)::integer           AS claimed,
       coalesce(owned.running, 0)::integer           AS running,
       now() - pending.oldest_due_at                 AS oldest_due_age,
       pending.next_due_at - now()                   AS next_due_in,
       (coalesce(finished.not_failed, 0) + coalesce(failed.failed, 0))::integer AS finished_last_minute,
       coalesce(failed.failed, 0)::integer           AS failed_last_minute,
       coalesce(finished.is_estimate, false)         AS is_estimate,
       coalesce(served.workers, 0)::integer          AS served_by
  FROM known
  LEFT JOIN pending USING (queue_name)
  LEFT JOIN owned USING (queue_name)
  LEFT JOIN finished USING (queue_name)
  LEFT JOIN failed USING (queue_name)
  LEFT JOIN served USING (queue_name)
  LEFT JOIN configured USING (queue_name)
  LEFT JOIN horsies_queues AS pause USING (queue_name)
 ORDER BY 2 NULLS LAST, queue_name;

-- name: has_work
SELECT EXISTS (SELECT FROM horsies_tasks AS t
                WHERE t.status = 'PENDING' AND t.queue_name = ANY ($1::text[])
                  AND (t.enqueued_at <= now() OR t.next_retry_at IS NOT NULL)
                  AND NOT EXISTS (SELECT FROM horsies_queues AS q
                                   WHERE q.queue_name = t.queue_name AND q.paused_at IS NOT NULL))
    OR EXISTS (SELECT FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING') AND queue_name = ANY ($1::text[]))
    OR EXISTS (SELECT FROM horsies_workflow_outbox WHERE quarantined_at IS NULL) AS has_work;
