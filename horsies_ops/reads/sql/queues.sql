-- name: list
-- Every queue that a task, a worker or a pause mentions. Pending and owned tasks are counted with their partial
-- indexes. Of the tasks finished in the last minute at most $1 are counted, and the number is extrapolated.
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
    SELECT CASE WHEN count(*) < $1 THEN 1
                ELSE 60 / greatest(extract(epoch FROM now() - min(terminal_at)), 0.001) END AS factor
      FROM newest
), finished AS (
    SELECT queue_name,
           round(count(*) * min(factor))                                    AS finished,
           round(count(*) FILTER (WHERE status = 'FAILED') * min(factor))   AS failed
      FROM newest CROSS JOIN extrapolation
     GROUP BY queue_name
), worker AS (
    SELECT id, queues, last_heartbeat_at,
           state IN ('starting', 'running')
               AND last_heartbeat_at > now() - interval '1 millisecond'
                   * CASE WHEN jsonb_typeof(recovery_config -> 'worker_stale_threshold_ms') = 'number'
                          THEN least((recovery_config ->> 'worker_stale_threshold_ms')::numeric, 7200000)::double precision
                          ELSE 300000 END AS is_serving
      FROM horsies_workers
     WHERE state <> 'stopped'
     ORDER BY last_heartbeat_at DESC
     LIMIT 1000
), served AS (
    SELECT queue_name, count(*) FILTER (WHERE is_serving) AS workers
      FROM worker CROSS JOIN LATERAL unnest(queues) AS queue_name
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
     CROSS JOIN LATERAL unnest(worker.queues) AS queue_name
     ORDER BY queue_name, worker.last_heartbeat_at DESC
), known AS (
    SELECT queue_name FROM pending UNION SELECT queue_name FROM owned UNION SELECT queue_name FROM finished
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
       coalesce(finished.finished, 0)::integer       AS finished_last_minute,
       coalesce(finished.failed, 0)::integer         AS failed_last_minute,
       coalesce(served.workers, 0)::integer          AS served_by
  FROM known
  LEFT JOIN pending USING (queue_name)
  LEFT JOIN owned USING (queue_name)
  LEFT JOIN finished USING (queue_name)
  LEFT JOIN served USING (queue_name)
  LEFT JOIN configured USING (queue_name)
  LEFT JOIN horsies_queues AS pause USING (queue_name)
 ORDER BY 2 NULLS LAST, queue_name;
