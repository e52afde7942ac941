-- name: register
-- The same row again where the answer to the first time was lost.
INSERT INTO horsies_workers (id, hostname, pid, version, queues, processes, recovery_config)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb)
ON CONFLICT (id) DO UPDATE SET last_heartbeat_at = now()
RETURNING started_at;

-- name: worker_heartbeat
-- A row that was declared lost stays lost; only the beat is written, so that its age tells of the return.
UPDATE horsies_workers
   SET last_heartbeat_at = now(), health = $2::text::jsonb
 WHERE id = $1
RETURNING now() AS at, state;

-- name: set_state
UPDATE horsies_workers
   SET state = $2, last_heartbeat_at = now(), stopped_at = CASE WHEN $2 = 'stopped' THEN now() END
 WHERE id = $1 AND (state <> 'lost' OR $2 = 'stopped');

-- name: insert_snapshot
INSERT INTO horsies_worker_states (worker_id, worker_started_at, hostname, pid, processes, max_claim_batch,
                                   max_claim_per_worker, cluster_wide_cap, queues, queue_priorities,
                                   queue_max_concurrency, recovery_config, tasks_running, tasks_claimed,
                                   memory_usage_mb, memory_percent, cpu_percent, children_memory_mb)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::jsonb, $11::text::jsonb, $12::text::jsonb, $13, $14, $15, $16,
        $17, $18);

-- name: next_due
-- Seconds until the soonest task that is not yet due. Goes from one priority present in a queue to the next, with one
-- look at each, past everything that is due already.
WITH RECURSIVE level AS (
    SELECT served.queue_name, first.priority
      FROM unnest($1::text[]) AS served(queue_name)
     CROSS JOIN LATERAL (SELECT t.priority
                           FROM horsies_tasks AS t
                          WHERE t.status = 'PENDING' AND t.queue_name = served.queue_name
                          ORDER BY t.priority
                          LIMIT 1) AS first
     UNION ALL
    SELECT level.queue_name, next.priority
      FROM level
     CROSS JOIN LATERAL (SELECT t.priority
                           FROM horsies_tasks AS t
                          WHERE t.status = 'PENDING' AND t.queue_name = level.queue_name AND t.priority > level.priority
                          ORDER BY t.priority
                          LIMIT 1) AS next
)
SELECT extract(epoch FROM min(soonest.enqueued_at) - now())::double precision AS delay_s
  FROM level
 CROSS JOIN LATERAL (SELECT t.enqueued_at
                       FROM horsies_tasks AS t
                      WHERE t.status = 'PENDING' AND t.queue_name = level.queue_name AND t.priority = level.priority
                        AND t.enqueued_at > now()
                      ORDER BY t.enqueued_at
                      LIMIT 1) AS soonest;

-- name: send_pong
SELECT pg_notify($1, $2) IS NOT NULL AS told;
