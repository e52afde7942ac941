-- name: publish
-- Store the catalog of a starting worker, or note that it was seen again.
INSERT INTO horsies_task_catalog (catalog_hash, task_name, queue_name, priority, max_retries, options, params_schema)
SELECT $1, entry.task_name, entry.queue_name, entry.priority, entry.max_retries, entry.options, entry.params_schema
  FROM pg_catalog.jsonb_to_recordset($2::text::jsonb)
       AS entry(task_name text, queue_name text, priority smallint, max_retries integer, options jsonb,
                params_schema jsonb)
 ORDER BY entry.task_name
ON CONFLICT (catalog_hash, task_name) DO UPDATE SET seen_at = now();

-- name: expire
-- Delete catalogs that no worker has used for 7 days.
DELETE FROM horsies_task_catalog AS c
 WHERE c.seen_at < now() - interval '7 days'
   AND NOT EXISTS (SELECT
                     FROM horsies_workers AS w
                    WHERE w.catalog_hash = c.catalog_hash AND w.last_heartbeat_at > now() - interval '7 days');

-- name: unregistered
-- Names that a live worker of a queue does not know, if it has been up for $1 seconds and no worker of this queue has
-- registered them for as long. A worker without a catalog may know any task.
SELECT DISTINCT queue.queue_name, unknown.task_name
  FROM horsies_workers AS w
 CROSS JOIN LATERAL pg_catalog.unnest(w.queues) AS queue(queue_name)
 CROSS JOIN LATERAL pg_catalog.jsonb_array_elements_text(
           CASE pg_catalog.jsonb_typeof(w.health -> 'unknown_tasks')
                WHEN 'array' THEN w.health -> 'unknown_tasks' ELSE '[]' END) AS unknown(task_name)
 WHERE w.state IN ('starting', 'running', 'draining')
   AND w.started_at <= now() - pg_catalog.make_interval(secs => $1::double precision)
   AND NOT EXISTS (SELECT
                     FROM horsies_workers AS other
                    WHERE queue.queue_name = ANY(other.queues)
                      AND (other.state IN ('starting', 'running', 'draining')
                           OR other.last_heartbeat_at > now() - pg_catalog.make_interval(secs => $1::double precision))
                      AND (other.catalog_hash IS NULL
                           OR EXISTS (SELECT
                                        FROM horsies_task_catalog AS c
                                       WHERE c.catalog_hash = other.catalog_hash AND c.task_name = unknown.task_name)));

-- name: fail_unregistered
-- Fail tasks of these queues and names that have been due for $4 seconds, each with the result given, at most $5 per
-- name.
WITH locked AS (
    SELECT task.id, input.document
      FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::text[])) AS input(queue_name, task_name, document)
     CROSS JOIN LATERAL (
           SELECT t.id
             FROM horsies_tasks AS t
            WHERE t.status = 'PENDING' AND t.queue_name = input.queue_name AND t.task_name = input.task_name
              AND t.enqueued_at <= now() - pg_catalog.make_interval(secs => $4::double precision)
            ORDER BY t.id
            LIMIT $5
              FOR NO KEY UPDATE SKIP LOCKED) AS task
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'FAILED', result = locked.document::jsonb, error_code = 'WORKER_RESOLUTION_ERROR', failed_at = now(),
           terminal_at = now(), next_retry_at = NULL, updated_at = now()
      FROM locked
     WHERE t.id = locked.id
    RETURNING t.id, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), {{ report_ended(ended) }};

-- name: waiting
-- How many tasks of each name are due, and since when; counts up to 10,000 per name.
SELECT input.queue_name, input.task_name, count(*)::integer AS tasks, min(task.enqueued_at) AS oldest_at
  FROM unnest((SELECT $1::text[]), (SELECT $2::text[])) AS input(queue_name, task_name)
 CROSS JOIN LATERAL (
       SELECT t.enqueued_at
         FROM horsies_tasks AS t
        WHERE t.status = 'PENDING' AND t.queue_name = input.queue_name AND t.task_name = input.task_name
          AND t.enqueued_at <= now()
        LIMIT 10000) AS task
 GROUP BY input.queue_name, input.task_name
 ORDER BY input.queue_name, input.task_name;
