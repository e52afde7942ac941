-- name: active
-- Workers that have not stopped, with the tasks they own and their newest snapshot.
SELECT w.id AS worker_id, w.hostname, w.pid, w.version, w.state, w.queues, w.processes, w.started_at, w.last_heartbeat_at,
       now() - w.last_heartbeat_at                                      AS heartbeat_age,
       now() - w.last_heartbeat_at > $1::interval                       AS is_stale,
       coalesce(owned.running, 0)::integer                              AS tasks_running,
       coalesce(owned.claimed, 0)::integer                              AS tasks_claimed,
       coalesce(owned.children, 0)::integer                             AS children_busy,
       load.cpu_percent, CASE WHEN load.memory_usage_mb > 0::double precision THEN load.memory_percent * load.memory_mb / load.memory_usage_mb END AS memory_percent,
       load.memory_mb,
       w.health ->> 'listener'::text                                          AS listener,
       w.health::text                                                   AS health,
       w.recovery_config::text                                          AS config,
       -- Anything but an array counts as empty: one malformed row must not break the whole list.
       CASE jsonb_typeof(w.health -> 'disabled_operations'::text)
            WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(w.health -> 'disabled_operations'::text))
            ELSE '{}' END                                               AS disabled_operations,
       CASE jsonb_typeof(w.health -> 'warnings'::text)
            WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(w.health -> 'warnings'::text))
            ELSE '{}' END                                               AS warnings
  FROM horsies_workers AS w
  LEFT JOIN LATERAL (SELECT count(*) FILTER (WHERE t.status = 'RUNNING') AS running,
                            pg_catalog.count(DISTINCT t.worker_pid) FILTER (WHERE t.status = 'RUNNING') AS children,
                            count(*) FILTER (WHERE t.status = 'CLAIMED') AS claimed
                       FROM horsies_tasks AS t
                      WHERE t.claimed_by_worker_id = w.id AND t.status IN ('CLAIMED', 'RUNNING')) AS owned ON true
  -- Stored is the percentage of the worker alone; shown is that of the worker and its children.
  LEFT JOIN LATERAL (SELECT s.cpu_percent, s.memory_percent, s.memory_usage_mb,
                            s.memory_usage_mb + coalesce(s.children_memory_mb, 0) AS memory_mb
                       FROM horsies_worker_states AS s
                      WHERE s.worker_id = w.id
                      ORDER BY s.snapshot_at DESC
                      LIMIT 1) AS load ON true
 WHERE w.state <> 'stopped'
 ORDER BY w.last_heartbeat_at DESC, w.id
 LIMIT $2;

-- name: history
-- The newest snapshots of a worker within $2, oldest first; memory as in `active`.
SELECT at, processes, tasks_running, tasks_claimed, cpu_percent,
       CASE WHEN memory_usage_mb > 0::double precision THEN memory_percent * memory_mb / memory_usage_mb END AS memory_percent, memory_mb
  FROM (SELECT snapshot_at AS at, processes, tasks_running, tasks_claimed, cpu_percent, memory_percent, memory_usage_mb,
               memory_usage_mb + coalesce(children_memory_mb, 0) AS memory_mb
          FROM horsies_worker_states
         WHERE worker_id = $1 AND snapshot_at > now() - $2::interval
         ORDER BY snapshot_at DESC
         LIMIT $3) AS newest
 ORDER BY at;
