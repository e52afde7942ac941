-- name: buckets
-- What ended in each of $2 stretches of $1, on boundaries that stay where they are from one look to the next. Of each
-- stretch as many as $3 rows are looked at, and the rest of it is reckoned from there.
SELECT stretch.at,
       round(ended.done * ended.factor)::integer   AS done,
       round(ended.failed * ended.factor)::integer AS failed
  FROM generate_series($2::integer - 1, 0, -1) AS back
 CROSS JOIN LATERAL (
       SELECT date_bin($1::interval, now(), timestamptz '2000-01-01 00:00Z') - back * $1::interval AS at) AS stretch
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE status = 'COMPLETED') AS done,
              count(*) FILTER (WHERE status = 'FAILED')    AS failed,
              CASE WHEN count(*) < $3 THEN 1
                   ELSE extract(epoch FROM $1::interval)
                        / greatest(extract(epoch FROM max(terminal_at) - stretch.at), 0.001) END AS factor
         FROM (SELECT status, terminal_at
                 FROM horsies_tasks
                WHERE terminal_at >= stretch.at AND terminal_at < stretch.at + $1::interval
                ORDER BY terminal_at
                LIMIT $3) AS few) AS ended
 ORDER BY stretch.at;

-- name: queues
-- What ended in each of $2 stretches of $1 by queue, and the longest that any of it had waited; cut and reckoned as in
-- `buckets`. A stretch in which nothing of a queue ended has no row for it.
SELECT few.queue_name AS queue, stretch.at,
       round(count(*) FILTER (WHERE few.status = 'COMPLETED') * min(few.factor))::integer AS done,
       round(count(*) FILTER (WHERE few.status = 'FAILED') * min(few.factor))::integer    AS failed,
       max(few.started_at - few.enqueued_at)                                              AS longest_wait
  FROM generate_series($2::integer - 1, 0, -1) AS back
 CROSS JOIN LATERAL (
       SELECT date_bin($1::interval, now(), timestamptz '2000-01-01 00:00Z') - back * $1::interval AS at) AS stretch
 CROSS JOIN LATERAL (
       SELECT queue_name, status, started_at, enqueued_at,
              CASE WHEN count(*) OVER () < $3 THEN 1
                   ELSE extract(epoch FROM $1::interval)
                        / greatest(extract(epoch FROM max(terminal_at) OVER () - stretch.at), 0.001) END AS factor
         FROM (SELECT queue_name, status, started_at, enqueued_at, terminal_at
                 FROM horsies_tasks
                WHERE terminal_at >= stretch.at AND terminal_at < stretch.at + $1::interval
                ORDER BY terminal_at
                LIMIT $3) AS ended) AS few
 GROUP BY few.queue_name, stretch.at
 ORDER BY few.queue_name, stretch.at;

-- name: times
-- How long the newest $2 tasks that ended within $1 waited and ran, in their last attempt.
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY started_at - enqueued_at)   AS wait_p50,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY started_at - enqueued_at)  AS wait_p95,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY terminal_at - started_at)   AS run_p50,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY terminal_at - started_at)  AS run_p95
  FROM (SELECT started_at, enqueued_at, terminal_at
          FROM horsies_tasks
         WHERE terminal_at > now() - $1::interval
         ORDER BY terminal_at DESC
         LIMIT $2) AS newest
 WHERE started_at IS NOT NULL;

-- name: errors
-- What went wrong within $1, code by code along their index, of each code the newest $2.
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
  FROM (SELECT code FROM code WHERE code IS NOT NULL LIMIT 200) AS known
 CROSS JOIN LATERAL (SELECT task_name, status, terminal_at
                       FROM horsies_tasks
                      WHERE error_code = known.code AND terminal_at > now() - $1::interval
                      ORDER BY terminal_at DESC
                      LIMIT $2) AS newest
 GROUP BY newest.task_name, known.code, newest.status
 ORDER BY count(*) DESC, 1, 2, 3;
