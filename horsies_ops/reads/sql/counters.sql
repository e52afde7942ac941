-- name: cutoff
-- The instant before which no more rows will appear: a row is stamped with the start of its transaction, so an open
-- transaction may still add older rows. One that is open for longer than our statement timeout (30 s, and 1 s of margin
-- on the server) is not ours.
SELECT greatest(least(now(), (SELECT min(xact_start)
                                FROM pg_stat_activity
                               WHERE datname = current_database() AND pid <> pg_backend_pid())),
                now() - interval '31 seconds') AS until;

-- name: finished
SELECT queue_name AS queue, status, count(*)::integer AS tasks
  FROM horsies_tasks
 WHERE terminal_at >= $1 AND terminal_at < $2
 GROUP BY queue_name, status;

-- name: durations
-- Attempts finished between $1 and $2 by duration bucket; the bounds are in $3, and the last bucket has no upper bound.
SELECT pg_catalog.width_bucket(took.s, $3::double precision[]) AS index, count(*)::integer AS attempts,
       sum(took.s) AS total_s
  FROM horsies_task_attempts AS attempt
 CROSS JOIN LATERAL (SELECT greatest(extract(epoch FROM attempt.finished_at - attempt.started_at), 0)::double precision
                            AS s) AS took
 WHERE attempt.finished_at >= $1 AND attempt.finished_at < $2
 GROUP BY index;

-- name: events
SELECT kind, coalesce(evidence ->> 'decision'::text, '') AS decision, count(*)::integer AS events
  FROM horsies_events
 WHERE kind IN ('late_result_refused', 'task_recovered') AND at >= $1 AND at < $2
 GROUP BY kind, decision;
