-- name: owned_counts
-- Claimed and running tasks, and the slots of the workers $1, which are those that respond.
WITH owned AS (
    SELECT status, CASE WHEN status = 'RUNNING' THEN started_at ELSE claimed_at END AS since
      FROM horsies_tasks
     WHERE status IN ('CLAIMED', 'RUNNING')
)
SELECT now()                                                            AS at,
       count(*) FILTER (WHERE status = 'CLAIMED')::integer              AS claimed,
       count(*) FILTER (WHERE status = 'RUNNING')::integer              AS running,
       now() - min(since) FILTER (WHERE status = 'CLAIMED')             AS oldest_claimed,
       now() - min(since) FILTER (WHERE status = 'RUNNING')             AS longest_running,
       (SELECT coalesce(sum(processes), 0)::integer
          FROM horsies_workers
         WHERE id = ANY ($1::uuid[]) AND state IN ('running', 'draining')) AS slots
  FROM owned;

-- name: status_counts
-- Tasks by status from four sources: the first $1 rows of the table, the first $1 rows with an error code, the first $2
-- failed tasks, and the planner's statistics.
SELECT 'table' AS source, sample.status, count(*) AS number
  FROM (SELECT status FROM horsies_tasks LIMIT $1) AS sample
 GROUP BY sample.status
 UNION ALL
SELECT 'with_error_code', sample.status, count(*)
  FROM (SELECT status FROM horsies_tasks WHERE error_code IS NOT NULL LIMIT $1) AS sample
 GROUP BY sample.status
 UNION ALL
SELECT 'failed', 'FAILED', count(*)
  FROM (SELECT FROM horsies_tasks WHERE status = 'FAILED' LIMIT $2) AS sample
 UNION ALL
SELECT 'planner', common.status, (common.share * greatest(relation.reltuples, 0))::bigint
  FROM pg_stats AS statistics
  JOIN pg_class AS relation ON relation.oid = 'horsies_tasks'::regclass::oid
 CROSS JOIN LATERAL unnest(statistics.most_common_vals::text::text[], statistics.most_common_freqs)
            AS common(status, share)
 WHERE statistics.schemaname = relation.relnamespace::regnamespace::text
   AND statistics.tablename = 'horsies_tasks' AND statistics.attname = 'status';

-- name: worker_states
SELECT state AS name, count(*)::integer AS number FROM horsies_workers GROUP BY state;

-- name: run_statuses
-- Workflow runs by status, each counted up to $1.
SELECT known.status AS name, counted.number
  FROM pg_catalog.unnest(ARRAY['PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED'])
       AS known(status)
 CROSS JOIN LATERAL (
       SELECT count(*)::integer AS number
         FROM (SELECT FROM horsies_workflows AS w WHERE w.status = known.status LIMIT $1) AS sample) AS counted;

-- name: recent_failures
-- Failed tasks of the last hour and the last day, up to $1.
SELECT count(*) FILTER (WHERE terminal_at > now() - interval '1 hour')::integer AS last_hour,
       count(*)::integer                                                       AS last_day
  FROM (SELECT terminal_at
          FROM horsies_tasks
         WHERE status = 'FAILED' AND terminal_at > now() - interval '1 day'
         ORDER BY terminal_at DESC
         LIMIT $1) AS newest;

-- name: throughput_buckets
-- Tasks finished in each of the last $2 intervals of length $1, on boundaries that do not move between two reads. Failed
-- tasks are counted exactly. Of the completed ones, those among the first $3 rows of an interval are counted; the number
-- is extrapolated from the time that these rows cover to the time between the first and the last row of the interval.
SELECT bucket.at,
       round(finished.done::numeric * finished.factor)::integer AS done,
       failed.number                                   AS failed,
       finished.rows >= $3                             AS is_estimate
  FROM generate_series($2::integer - 1, 0, -1) AS back
 CROSS JOIN LATERAL (
       SELECT date_bin($1::interval, now(), timestamptz '2000-01-01 00:00Z')
              - back::double precision * $1::interval AS at) AS bucket
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE status = 'COMPLETED') AS done, count(*) AS rows,
              CASE WHEN count(*) < $3 THEN 1
                   ELSE greatest(extract(epoch FROM (
                            SELECT max(t.terminal_at)
                              FROM horsies_tasks AS t
                             WHERE t.terminal_at >= bucket.at AND t.terminal_at < bucket.at + $1::interval)
                            - min(terminal_at))
                        / greatest(extract(epoch FROM max(terminal_at) - min(terminal_at)), 0.1), 1) END AS factor
         FROM (SELECT status, terminal_at
                 FROM horsies_tasks
                WHERE terminal_at >= bucket.at AND terminal_at < bucket.at + $1::interval
                ORDER BY terminal_at
                LIMIT $3) AS sample) AS finished
 CROSS JOIN LATERAL (
       SELECT count(*)::integer AS number
         FROM horsies_tasks
        WHERE status = 'FAILED' AND terminal_at >= bucket.at AND terminal_at < bucket.at + $1::interval) AS failed
 ORDER BY bucket.at;

-- name: queue_buckets
-- Tasks finished per queue and interval, and the longest wait among them; counted and extrapolated as in
-- `throughput_buckets`. An interval in which no task of a queue finished has no row for that queue.
WITH bucket AS MATERIALIZED (
    SELECT start.at,
           (SELECT max(t.terminal_at)
              FROM horsies_tasks AS t
             WHERE t.terminal_at >= start.at AND t.terminal_at < start.at + $1::interval) AS last_at
      FROM generate_series($2::integer - 1, 0, -1) AS back
     CROSS JOIN LATERAL (
           SELECT date_bin($1::interval, now(), timestamptz '2000-01-01 00:00Z')
                  - back::double precision * $1::interval AS at) AS start
), finished AS (
    SELECT sample.queue_name, bucket.at, sample.status, sample.started_at - sample.enqueued_at AS wait,
           CASE WHEN sample.rows < $3 THEN 1
                ELSE greatest(extract(epoch FROM bucket.last_at - sample.first_at)
                     / greatest(extract(epoch FROM sample.last_at - sample.first_at), 0.1), 1) END AS factor,
           sample.rows >= $3 AS is_estimate
      FROM bucket
     CROSS JOIN LATERAL (
           SELECT queue_name, status, started_at, enqueued_at, count(*) OVER () AS rows,
                  min(terminal_at) OVER () AS first_at, max(terminal_at) OVER () AS last_at
             FROM (SELECT queue_name, status, started_at, enqueued_at, terminal_at
                     FROM horsies_tasks
                    WHERE terminal_at >= bucket.at AND terminal_at < bucket.at + $1::interval
                    ORDER BY terminal_at
                    LIMIT $3) AS first_rows) AS sample
), failed AS (
    SELECT task.queue_name, bucket.at, count(*) AS failed
      FROM bucket
      JOIN horsies_tasks AS task
        ON task.status = 'FAILED' AND task.terminal_at >= bucket.at AND task.terminal_at < bucket.at + $1::interval
     GROUP BY task.queue_name, bucket.at
), counted AS (
    SELECT queue_name, at,
           round((count(*) FILTER (WHERE status = 'COMPLETED'))::numeric * min(factor))::integer AS done,
           max(wait) AS longest_wait, bool_or(is_estimate) AS is_estimate
      FROM finished
     GROUP BY queue_name, at
)
SELECT queue_name AS queue, at, coalesce(counted.done, 0) AS done, coalesce(failed.failed, 0)::integer AS failed,
       counted.longest_wait, coalesce(counted.is_estimate, true) AS is_estimate
  FROM counted
  FULL JOIN failed USING (queue_name, at)
 ORDER BY queue_name, at;

-- name: time_percentiles
-- Wait and run time of the last attempt, over the newest $2 tasks finished within $1.
SELECT pg_catalog.percentile_cont(0.5) WITHIN GROUP (ORDER BY started_at - enqueued_at)   AS wait_p50,
       pg_catalog.percentile_cont(0.95) WITHIN GROUP (ORDER BY started_at - enqueued_at)  AS wait_p95,
       pg_catalog.percentile_cont(0.5) WITHIN GROUP (ORDER BY terminal_at - started_at)   AS run_p50,
       pg_catalog.percentile_cont(0.95) WITHIN GROUP (ORDER BY terminal_at - started_at)  AS run_p95
  FROM (SELECT started_at, enqueued_at, terminal_at
          FROM horsies_tasks
         WHERE terminal_at > now() - $1::interval
         ORDER BY terminal_at DESC
         LIMIT $2) AS newest
 WHERE started_at IS NOT NULL;

-- name: error_counts
-- Unsuccessful tasks finished within $1 by name, code and status. The recursive query jumps through the index from one
-- code to the next; of each code the newest $2 tasks are counted.
WITH RECURSIVE code(code) AS (
    (SELECT error_code FROM horsies_tasks WHERE error_code IS NOT NULL ORDER BY error_code LIMIT 1)
    UNION ALL
    SELECT (SELECT t.error_code
              FROM horsies_tasks AS t
             WHERE t.error_code IS NOT NULL AND t.error_code > code.code
             ORDER BY t.error_code
             LIMIT 1)
      FROM code
     WHERE code.code IS NOT NULL
)
SELECT newest.task_name AS name, known.code, newest.status, count(*)::integer AS count,
       count(*) FILTER (WHERE newest.terminal_at > now() - interval '1 hour')::integer AS last_hour
  -- Apps choose their own codes, so there may be any number of them.
  FROM (SELECT code FROM code WHERE code IS NOT NULL LIMIT 200) AS known
 CROSS JOIN LATERAL (SELECT task_name, status, terminal_at
                       FROM horsies_tasks
                      WHERE error_code = known.code AND terminal_at > now() - $1::interval
                      ORDER BY terminal_at DESC
                      LIMIT $2) AS newest
 GROUP BY newest.task_name, known.code, newest.status
 ORDER BY count(*) DESC, 1, 2, 3;
