-- name: live
-- What is held now, and how much of it has been silent for too long: by the most patient of the live workers and of its
-- owner, longer where a flag says so.
WITH worker AS (
    SELECT processes, recovery_config,
           state IN ('starting', 'running', 'draining')
               AND last_heartbeat_at > now() - coalesce((recovery_config ->> 'worker_stale_threshold_ms')::bigint, 300000)
                                               * interval '1 millisecond' AS is_live
      FROM horsies_workers
), fleet AS (
    SELECT coalesce(max((recovery_config ->> 'claimed_stale_threshold_ms')::bigint), 120000) AS claimed_ms,
           coalesce(max((recovery_config ->> 'running_stale_threshold_ms')::bigint), 300000) AS running_ms,
           coalesce(max((recovery_config ->> 'resilient_multiplier')::integer), 3)           AS multiplier,
           coalesce(sum(processes), 0)::integer                                              AS slots
      FROM worker
     WHERE is_live
), patient AS (
    SELECT coalesce(array_agg(DISTINCT flag), '{infrastructure_resilient}') AS flags
      FROM worker
     CROSS JOIN LATERAL jsonb_array_elements_text(recovery_config -> 'resilient_flags') AS flag
     WHERE is_live
), held AS (
    SELECT t.id, t.status, t.claim_token, t.recovery_hold_until,
           CASE WHEN t.status = 'RUNNING' THEN 'runner' ELSE 'claimer' END          AS role,
           CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END   AS since,
           coalesce(owner.state = 'stopped', false)                                 AS is_owner_stopped,
           now() - interval '1 millisecond'
               * CASE WHEN t.status = 'RUNNING'
                      THEN greatest(fleet.running_ms, (owner.recovery_config ->> 'running_stale_threshold_ms')::bigint)
                      ELSE greatest(fleet.claimed_ms, (owner.recovery_config ->> 'claimed_stale_threshold_ms')::bigint)
                 END
               * CASE WHEN EXISTS (SELECT FROM unnest(patient.flags) AS flag WHERE t.flags -> flag = 'true')
                      THEN fleet.multiplier ELSE 1 END                              AS stale_before
      FROM horsies_tasks AS t
     CROSS JOIN fleet
     CROSS JOIN patient
      LEFT JOIN horsies_workers AS owner ON owner.id = t.claimed_by_worker_id
     WHERE t.status IN ('CLAIMED', 'RUNNING')
), judged AS (
    SELECT held.status, held.since,
           (held.recovery_hold_until IS NULL OR held.recovery_hold_until <= now())
           AND (held.is_owner_stopped
                OR held.since <= held.stale_before
                   AND NOT EXISTS (SELECT
                                     FROM horsies_heartbeats AS beat
                                    WHERE beat.task_id = held.id AND beat.role = held.role
                                      AND beat.claim_token = held.claim_token AND beat.sent_at > held.stale_before))
           AS is_stale
      FROM held
)
SELECT now()                                                                 AS at,
       count(*) FILTER (WHERE status = 'CLAIMED')::integer                   AS claimed,
       count(*) FILTER (WHERE status = 'RUNNING')::integer                   AS running,
       now() - min(since) FILTER (WHERE status = 'CLAIMED')                  AS oldest_claimed,
       now() - min(since) FILTER (WHERE status = 'RUNNING')                  AS longest_running,
       count(*) FILTER (WHERE status = 'CLAIMED' AND is_stale)::integer      AS stale_claimed,
       count(*) FILTER (WHERE status = 'RUNNING' AND is_stale)::integer      AS stale_running,
       (SELECT slots FROM fleet)                                             AS slots
  FROM judged;

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
