-- name: register
-- Register a worker. After a lost answer the second call finds its own row.
INSERT INTO horsies_workers (id, hostname, pid, version, queues, processes, recovery_config, catalog_hash)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8)
ON CONFLICT (id) DO UPDATE SET last_heartbeat_at = now()
RETURNING started_at;

-- name: worker_heartbeat
-- Write a worker's heartbeat. A lost worker stays lost; the fresh heartbeat shows that it is back.
UPDATE horsies_workers
   SET last_heartbeat_at = now(), health = $2::text::jsonb
 WHERE id = $1
RETURNING now() AS at, state;

-- name: set_state
-- A lost worker can only become stopped.
UPDATE horsies_workers
   SET state = $2, last_heartbeat_at = now(), stopped_at = CASE WHEN $2 = 'stopped' THEN now() END
 WHERE id = $1 AND (state <> 'lost' OR $2 = 'stopped');

-- name: insert_snapshot
-- Publish a snapshot of a worker.
INSERT INTO horsies_worker_states (worker_id, hostname, pid, processes, max_claim_batch, max_claim_per_worker,
                                   cluster_wide_cap, queues, queue_priorities, queue_max_concurrency, recovery_config,
                                   tasks_running, tasks_claimed, memory_usage_mb, memory_percent, cpu_percent,
                                   children_memory_mb, worker_started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10::text::jsonb, $11::text::jsonb, $12, $13, $14, $15, $16,
        $17, $18);

-- name: newest_states
-- Newest snapshot of each worker; a loose index scan skips the older ones.
WITH RECURSIVE worker(id) AS (
    (SELECT worker_id FROM horsies_worker_states ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT (SELECT next_state.worker_id
              FROM horsies_worker_states AS next_state
             WHERE next_state.worker_id > worker.id
             ORDER BY next_state.worker_id
             LIMIT 1)
      FROM worker
     WHERE worker.id IS NOT NULL
)
SELECT newest.*
  FROM worker
 CROSS JOIN LATERAL (
       SELECT worker_id::text AS worker_id, snapshot_at, hostname, pid, processes, max_claim_batch,
              max_claim_per_worker, cluster_wide_cap, queues, queue_priorities::text AS queue_priorities,
              queue_max_concurrency::text AS queue_max_concurrency, recovery_config::text AS recovery_config,
              tasks_running, tasks_claimed, memory_usage_mb, memory_percent, cpu_percent, children_memory_mb,
              worker_started_at
         FROM horsies_worker_states
        WHERE worker_id = worker.id
        ORDER BY snapshot_at DESC
        LIMIT 1) AS newest
 ORDER BY newest.snapshot_at DESC, newest.worker_id;

-- name: state_history
-- Snapshots of one worker, newest first.
SELECT worker_id::text AS worker_id, snapshot_at, hostname, pid, processes, max_claim_batch, max_claim_per_worker,
       cluster_wide_cap, queues, queue_priorities::text AS queue_priorities,
       queue_max_concurrency::text AS queue_max_concurrency, recovery_config::text AS recovery_config,
       tasks_running, tasks_claimed, memory_usage_mb, memory_percent, cpu_percent, children_memory_mb, worker_started_at
  FROM horsies_worker_states
 WHERE worker_id = $1
 ORDER BY snapshot_at DESC
 LIMIT $2;

-- name: due_work
-- What an idle worker polls for: whether tasks of its queues are due or have an expired lease, the seconds until the next
-- delayed one is due, and whether the outbox has entries. A loose index scan reads at most two rows per priority.
WITH RECURSIVE level AS (
    SELECT queue.queue_name, first.priority
      FROM pg_catalog.unnest($1::text[]) AS queue(queue_name)
     CROSS JOIN LATERAL (SELECT t.priority
                           FROM horsies_tasks AS t
                          WHERE t.status = 'PENDING' AND t.queue_name = queue.queue_name
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
), waiting AS (
    SELECT (SELECT t.enqueued_at
              FROM horsies_tasks AS t
             WHERE t.status = 'PENDING' AND t.queue_name = level.queue_name AND t.priority = level.priority
             ORDER BY t.enqueued_at
             LIMIT 1) AS first_at,
           (SELECT t.enqueued_at
              FROM horsies_tasks AS t
             WHERE t.status = 'PENDING' AND t.queue_name = level.queue_name AND t.priority = level.priority
               AND t.enqueued_at > now()
             ORDER BY t.enqueued_at
             LIMIT 1) AS next_at
      FROM level
)
SELECT EXISTS (SELECT FROM waiting WHERE first_at <= now())
           OR EXISTS (SELECT
                        FROM pg_catalog.unnest($1::text[]) AS queue(queue_name)
                        JOIN horsies_tasks AS t
                          ON t.status = 'CLAIMED' AND t.queue_name = queue.queue_name AND t.claim_expires_at <= now())
           AS has_due_tasks,
       (SELECT extract(epoch FROM min(next_at) - now())::double precision FROM waiting) AS next_due_s,
       EXISTS (SELECT FROM horsies_workflow_outbox WHERE quarantined_at IS NULL) AS has_outbox_entries;

-- name: task_heartbeats
-- Write a heartbeat for each task that the worker still owns, renew leases, and return the current state of every
-- requested task. An expired lease is not renewed: another worker may already have claimed the task.
WITH input AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::integer[]))
           AS input(id, claim_token, worker_id, pid)
), current_tasks AS MATERIALIZED (
    SELECT input.*, t.status, t.claim_token AS current_token, t.kill_requested, t.error_code,
           t.claim_token = input.claim_token AND t.claimed_by_worker_id = input.worker_id
               AND t.status = CASE WHEN $5 = 'claimer' THEN 'CLAIMED' ELSE 'RUNNING' END AS is_held
      FROM input
      -- LEFT JOIN: the worker must also learn that a task was deleted.
      LEFT JOIN horsies_tasks AS t ON t.id = input.id
), heartbeats AS (
    INSERT INTO horsies_heartbeats (task_id, claim_token, role, sender_id, pid, hostname)
    SELECT id, claim_token, $5,
           CASE WHEN $5 = 'claimer' THEN worker_id::text ELSE worker_id::text || ':' || pid::text END, pid, $6
      FROM current_tasks
     WHERE is_held
), renewable AS (
    SELECT t.id
      FROM current_tasks
      JOIN horsies_tasks AS t ON t.id = current_tasks.id AND t.claim_token = current_tasks.claim_token
                             AND t.status || '' = 'CLAIMED'
     WHERE $7::double precision IS NOT NULL AND current_tasks.is_held
       -- A claim that is too old is not renewed: this worker is too slow to start the task, so let others have it.
       AND t.claim_expires_at > now() AND t.claimed_at > now() - pg_catalog.make_interval(secs => $8)
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), renewed AS (
    UPDATE horsies_tasks AS t
       SET claim_expires_at = now() + pg_catalog.make_interval(secs => $7), updated_at = now()
      FROM renewable
     WHERE t.id = renewable.id
), notified AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT pg_catalog.json_build_object('kind', 'heartbeats', 'worker_id', worker_id, 'count', count(*))::text
              FROM current_tasks
             WHERE is_held AND $5 = 'runner'
             GROUP BY worker_id
             UNION ALL
            SELECT event FROM pg_catalog.unnest($9::text[]) AS event) AS message(payload)
     CROSS JOIN LATERAL pg_notify('horsies_events', message.payload)
)
SELECT id, claim_token, coalesce(is_held, false) AS is_held, status, current_token,
       coalesce(kill_requested, false) AS kill_requested, error_code
  FROM current_tasks
 WHERE (SELECT messages FROM notified) >= 0;
