-- name: id_range
-- The next rows in the order of their ids, whatever is in them, as far as $4. Only one of the two branches is ever
-- carried out.
SELECT count(*)::integer   AS size,
       min(id::text)::uuid AS lowest,
       max(id::text)::uuid AS highest
  FROM ((SELECT id FROM horsies_tasks
          WHERE NOT $1::boolean AND id < $2::uuid AND id >= $4::uuid ORDER BY id DESC LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks
          WHERE $1::boolean AND id > $2::uuid AND id <= $4::uuid ORDER BY id LIMIT $3)) AS ahead;

-- name: candidates
-- Ids of all tasks that can match a filter of a kind for which there is an index; the branches of other kinds cost
-- nothing. As many as $3 mean that there are too many to be gone through at once.
SELECT few.id
  FROM ((SELECT id FROM horsies_tasks WHERE $1 = 'waiting' AND status = 'PENDING' LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks WHERE $1 IN ('waiting', 'held') AND status IN ('CLAIMED', 'RUNNING') LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks WHERE $1 = 'failed' AND error_code IS NOT NULL LIMIT $3)
        UNION ALL
        (SELECT id FROM horsies_tasks WHERE $1 = 'workflow' AND workflow_id = $2 LIMIT $3)) AS few
 LIMIT $3;

-- name: matches
-- Those tasks between two ids, or with one of the ids given, that the wanted filter matches and no unwanted one does.
-- Filters come as JSON, so that what a filter means is written once. Rows are sorted after they matched: sorted before,
-- they are carried whole, and by parallel workers whose start costs more than the stretch.
WITH found AS MATERIALIZED (
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
              -- Ids are whole or the last eight digits.
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
          -- A task that waits for its next attempt still has the start of its last one, and does not run.
          AND (f.min_run IS NULL
               OR CASE WHEN t.status = 'RUNNING' THEN now() ELSE t.terminal_at END - t.started_at >= f.min_run)
          AND (f.min_silence IS NULL
               OR t.status IN ('CLAIMED', 'RUNNING')
                  AND now() - coalesce((SELECT max(beat.sent_at)
                                          FROM horsies_heartbeats AS beat
                                         WHERE beat.task_id = t.id AND beat.claim_token = t.claim_token),
                                       CASE WHEN t.status = 'RUNNING' THEN t.started_at ELSE t.claimed_at END)
                      >= f.min_silence)
          AND (f.text IS NULL
               OR strpos(lower(concat_ws(E'\n', t.task_name, t.error_code, t.failed_reason, t.result #>> '{err,message}',
                                         t.args, t.kwargs)), lower(f.text)) > 0)
        ) IS TRUE))
)
SELECT id, status
  FROM found
 ORDER BY CASE WHEN $5::boolean THEN id END, id DESC
 LIMIT $6;

-- name: facets
-- What occurs among these tasks, and how often; of each kind the most frequent values.
SELECT kind, value, count
  FROM (SELECT part.kind, part.value, count(*)::integer AS count,
               row_number() OVER (PARTITION BY part.kind ORDER BY count(*) DESC, part.value) AS rank
          FROM horsies_tasks AS t
         CROSS JOIN LATERAL (VALUES ('statuses', t.status), ('queues', t.queue_name), ('names', t.task_name),
                                    ('error_codes', t.error_code)) AS part(kind, value)
         WHERE t.id = ANY ($1::uuid[]) AND part.value IS NOT NULL
         GROUP BY part.kind, part.value) AS counted
 WHERE rank <= $2
 ORDER BY kind, rank;

-- name: table_size
-- How many tasks there are: counted as far as $1, and what the planner believes.
SELECT (SELECT count(*)::integer FROM (SELECT FROM horsies_tasks LIMIT $1) AS counted) AS counted,
       (SELECT greatest(reltuples, pg_stat_get_live_tuples(oid), 0)::bigint
          FROM pg_class WHERE oid = 'horsies_tasks'::regclass)                         AS estimate;
