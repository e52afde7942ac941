-- name: cutoff
-- Up to when everything that ended is on disk: what an open transaction ends bears the time of its beginning. One that
-- has been open for longer than any of our statements may take is none of ours.
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
-- How many executions that ended took less than each of the bounds in $3, and no less than the one before; the last part
-- is beyond them all.
SELECT width_bucket(took.s, $3::double precision[]) AS index, count(*)::integer AS attempts, sum(took.s) AS total_s
  FROM horsies_task_attempts AS attempt
 CROSS JOIN LATERAL (SELECT greatest(extract(epoch FROM attempt.finished_at - attempt.started_at), 0)::double precision
                            AS s) AS took
 WHERE attempt.finished_at >= $1 AND attempt.finished_at < $2
 GROUP BY index;

-- name: events
SELECT kind, coalesce(evidence ->> 'decision', '') AS decision, count(*)::integer AS events
  FROM horsies_events
 WHERE kind IN ('late_result_refused', 'task_recovered') AND at >= $1 AND at < $2
 GROUP BY kind, decision;
