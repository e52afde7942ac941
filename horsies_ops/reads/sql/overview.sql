-- name: live
-- What is held now. An odd setting of a worker counts as the default.
WITH held AS (
    SELECT status, CASE WHEN status = 'RUNNING' THEN started_at ELSE claimed_at END AS since
      FROM horsies_tasks
     WHERE status IN ('CLAIMED', 'RUNNING')
), beating AS (
    SELECT processes
      FROM horsies_workers
     WHERE state IN ('starting', 'running', 'draining')
       AND last_heartbeat_at > now() - interval '1 millisecond'
           * CASE WHEN jsonb_typeof(recovery_config -> 'worker_stale_threshold_ms') = 'number'
                  THEN least((recovery_config ->> 'worker_stale_threshold_ms')::numeric, 7200000)::double precision
                  ELSE 300000 END
)
SELECT now()                                                            AS at,
       count(*) FILTER (WHERE status = 'CLAIMED')::integer              AS claimed,
       count(*) FILTER (WHERE status = 'RUNNING')::integer              AS running,
       now() - min(since) FILTER (WHERE status = 'CLAIMED')             AS oldest_claimed,
       now() - min(since) FILTER (WHERE status = 'RUNNING')             AS longest_running,
       (SELECT coalesce(sum(processes), 0)::integer FROM beating)       AS slots
  FROM held;

-- name: ended
-- Tasks by status as far as $1 rows of the table, as far as $1 of those with a code, and as the planner believes.
SELECT 'table' AS source, few.status, count(*) AS number
  FROM (SELECT status FROM horsies_tasks LIMIT $1) AS few
 GROUP BY few.status
 UNION ALL
SELECT 'coded', few.status, count(*)
  FROM (SELECT status FROM horsies_tasks WHERE error_code IS NOT NULL LIMIT $1) AS few
 GROUP BY few.status
 UNION ALL
SELECT 'planner', common.status, (common.share * greatest(relation.reltuples, 0))::bigint
  FROM pg_stats AS statistics
  JOIN pg_class AS relation ON relation.oid = 'horsies_tasks'::regclass
 CROSS JOIN LATERAL unnest(statistics.most_common_vals::text::text[], statistics.most_common_freqs)
            AS common(status, share)
 WHERE statistics.schemaname = relation.relnamespace::regnamespace::text
   AND statistics.tablename = 'horsies_tasks' AND statistics.attname = 'status';

-- name: workers
SELECT state, count(*)::integer AS number FROM horsies_workers GROUP BY state;

-- name: workflows
-- Runs by status, of each status as far as $1.
SELECT known.status, counted.number
  FROM unnest(ARRAY['PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED']) AS known(status)
 CROSS JOIN LATERAL (
       SELECT count(*)::integer AS number
         FROM (SELECT FROM horsies_workflows AS w WHERE w.status = known.status LIMIT $1) AS few) AS counted;
