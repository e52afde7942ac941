-- name: id_range
-- The next $3 rows after $2 in id order, up to $4, without any filter. Only one of the two branches is executed.
SELECT count(*)::integer   AS size,
       -- Through text, because not all supported versions of PostgreSQL have min() and max() for uuid.
       min(id::text)::uuid AS lowest,
       max(id::text)::uuid AS highest
  FROM ((SELECT id FROM horsies_tasks
          WHERE NOT $1::boolean AND id < $2::uuid AND id >= $4::uuid ORDER BY id DESC LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks
          WHERE $1::boolean AND id > $2::uuid AND id <= $4::uuid ORDER BY id LIMIT $3)) AS next_rows;

-- name: candidates
-- Ids of all tasks in the index $1; the branches of the other indexes are not executed. If $3 rows are returned, there
-- are too many candidates.
SELECT candidate.id
  FROM ((SELECT id FROM horsies_tasks WHERE $1 = 'unfinished' AND status = 'PENDING' LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks WHERE $1 IN ('unfinished', 'owned') AND status IN ('CLAIMED', 'RUNNING') LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks WHERE $1 = 'failed' AND error_code IS NOT NULL LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks WHERE $1 = 'workflow' AND workflow_id = $2 LIMIT $3)) AS candidate
 LIMIT $3;

-- name: matches
-- Tasks between the ids $1 and $2, or with one of the ids in $3, that match the wanted filter and no unwanted one.
-- Filters are passed as JSON, so that the meaning of a filter is written only once. Rows are sorted after matching:
-- sorting first would carry whole rows, and start parallel workers, which cost more than scanning the range.
WITH matching AS MATERIALIZED (
SELECT t.id, t.status
  FROM (SELECT * FROM horsies_tasks WHERE $3::uuid[] IS NULL AND id BETWEEN $1 AND $2
        UNION ALL
        SELECT * FROM horsies_tasks WHERE id = ANY ($3)) AS t
 WHERE NOT EXISTS (
       SELECT
         FROM jsonb_to_recordset($4::text::jsonb) AS f(
              is_wanted boolean, ids text[], statuses text[], queues text[], names text[], error_codes text[],
              worker_id text, workflow_id text, flag text, retried boolean, older_than interval, newer_than interval,
              text text, min_wait interval, min_run interval, min_silence interval, min_attempts integer,
              due_later boolean)
        WHERE f.is_wanted <> ((
              -- Full ids or short ids.
              (f.ids IS NULL OR t.id::text = ANY (f.ids) OR right(t.id::text, 8) = ANY (f.ids))
          AND (f.statuses IS NULL OR t.status = ANY (f.statuses))
          AND (f.queues IS NULL OR t.queue_name = ANY (f.queues))
          AND (f.names IS NULL OR t.task_name LIKE ANY (f.names))
          AND (f.error_codes IS NULL OR t.error_code LIKE ANY (f.error_codes))
          AND (f.worker_id IS NULL OR right(t.claimed_by_worker_id::text, length(f.worker_id)) = f.worker_id)
          AND (f.workflow_id IS NULL OR right(t.workflow_id::text, length(f.workflow_id)) = f.workflow_id)
          AND (f.flag IS NULL OR t.flags -> f.flag = 'true')
          AND (f.retried IS NULL OR (t.retry_count > 0) = f.retried)
          AND (f.older_than IS NULL OR now() - t.sent_at >= f.older_than)
          AND (f.newer_than IS NULL OR now() - t.sent_at < f.newer_than)
          AND (f.min_attempts IS NULL OR t.attempts >= f.min_attempts)
          AND (f.due_later IS NULL OR (t.status = 'PENDING' AND t.enqueued_at > now()) = f.due_later)
          AND (f.min_wait IS NULL
               OR CASE WHEN t.status IN ('PENDING', 'CLAIMED') THEN now() ELSE coalesce(t.started_at, t.terminal_at) END
                  - t.enqueued_at >= f.min_wait)
          -- A task waiting for its next attempt still has the started_at of its last one, but is not running.
          AND (f.min_run IS NULL
               OR CASE WHEN t.status = 'RUNNING' THEN now() ELSE t.terminal_at END - t.started_at >= f.min_run)
          AND (f.min_silence IS NULL
               OR t.status IN ('CLAIMED', 'RUNNING')
                  AND now() - coalesce((SELECT max(heartbeat.sent_at)
                                          FROM horsies_heartbeats AS heartbeat
                                         WHERE heartbeat.task_id = t.id AND heartbeat.claim_token = t.claim_token),
                                       CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END)
                      >= f.min_silence)
          AND (f.text IS NULL
               OR strpos(lower(pg_catalog.concat_ws(E'\n', t.task_name, t.error_code, t.failed_reason,
                                        t.result #>> '{err,message}'::text[],
                                         t.args, t.kwargs)), lower(f.text)) > 0)
        -- A comparison with NULL counts as no match.
        ) IS TRUE))
)
SELECT id, status
  FROM matching
 ORDER BY CASE WHEN $5::boolean THEN id END, id DESC
 LIMIT $6;

-- name: facets
-- The $2 most frequent statuses, queues, names and error codes of the tasks $1.
SELECT kind, value, count
  FROM (SELECT facet.kind, facet.value, count(*)::integer AS count,
               row_number() OVER (PARTITION BY facet.kind ORDER BY count(*) DESC, facet.value) AS rank
          FROM horsies_tasks AS t
         CROSS JOIN LATERAL (VALUES ('statuses', t.status), ('queues', t.queue_name), ('names', t.task_name),
                                    ('error_codes', t.error_code)) AS facet(kind, value)
         WHERE t.id = ANY ($1::uuid[]) AND facet.value IS NOT NULL
         GROUP BY facet.kind, facet.value) AS counted
 WHERE rank <= $2
 ORDER BY kind, rank;

-- name: table_size
-- Number of tasks: counted up to $1, and the planner's estimate.
SELECT (SELECT count(*)::integer FROM (SELECT FROM horsies_tasks LIMIT $1) AS counted) AS counted,
       (SELECT greatest(reltuples, pg_stat_get_live_tuples(oid), 0)::bigint
          FROM pg_class WHERE oid = 'horsies_tasks'::regclass::oid)                         AS estimate;

-- name: tasks_by_short_id
-- Tasks whose id ends in $1, among all unfinished tasks and the newest $2. Each of the first two branches uses a
-- partial index, so that finished tasks are not scanned.
SELECT match.id, match.name, match.status
  FROM ((SELECT id, task_name AS name, status FROM horsies_tasks
          WHERE status = 'PENDING' AND right(id::text, 8) = $1)
        UNION
        (SELECT id, task_name, status FROM horsies_tasks
          WHERE status IN ('CLAIMED', 'RUNNING') AND right(id::text, 8) = $1)
        UNION
        (SELECT id, task_name, status
           FROM (SELECT id, task_name, status FROM horsies_tasks ORDER BY id DESC LIMIT $2) AS newest
          WHERE right(id::text, 8) = $1)) AS match
 ORDER BY match.id DESC
 LIMIT $3;

-- name: runs_by_short_id
-- The same for workflow runs.
SELECT match.id, match.name, match.status
  FROM ((SELECT id, name, status FROM horsies_workflows
          WHERE status IN ('PENDING', 'RUNNING', 'PAUSED') AND right(id::text, 8) = $1)
        UNION
        (SELECT id, name, status
           FROM (SELECT id, name, status FROM horsies_workflows ORDER BY id DESC LIMIT $2) AS newest
          WHERE right(id::text, 8) = $1)) AS match
 ORDER BY match.id DESC
 LIMIT $3;
