-- name: send_ping
SELECT pg_notify('horsies_worker_ping', $1) IS NULL AS is_sent;

-- name: newest_states
-- The newest snapshot of each worker. Goes from worker to worker along the index, past all older snapshots.
WITH RECURSIVE worker(id) AS (
    (SELECT worker_id FROM horsies_worker_states ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT (SELECT following.worker_id
              FROM horsies_worker_states AS following
             WHERE following.worker_id > worker.id
             ORDER BY following.worker_id
             LIMIT 1)
      FROM worker
     WHERE worker.id IS NOT NULL
)
SELECT newest.*
  FROM worker
 CROSS JOIN LATERAL (
       SELECT worker_id::text AS worker_id, snapshot_at, hostname, pid, processes, max_claim_batch, max_claim_per_worker,
              cluster_wide_cap, queues, queue_priorities::text AS queue_priorities,
              queue_max_concurrency::text AS queue_max_concurrency, recovery_config::text AS recovery_config,
              tasks_running, tasks_claimed, memory_usage_mb, memory_percent, cpu_percent, children_memory_mb,
              worker_started_at
         FROM horsies_worker_states
        WHERE worker_id = worker.id
        ORDER BY snapshot_at DESC
        LIMIT 1) AS newest
 ORDER BY newest.snapshot_at DESC, newest.worker_id;

-- name: state_history
SELECT worker_id::text AS worker_id, snapshot_at, hostname, pid, processes, max_claim_batch, max_claim_per_worker,
       cluster_wide_cap, queues, queue_priorities::text AS queue_priorities,
       queue_max_concurrency::text AS queue_max_concurrency, recovery_config::text AS recovery_config,
       tasks_running, tasks_claimed, memory_usage_mb, memory_percent, cpu_percent, children_memory_mb, worker_started_at
  FROM horsies_worker_states
 WHERE worker_id = $1
 ORDER BY snapshot_at DESC
 LIMIT $2;
