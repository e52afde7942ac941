-- name: insert_run
-- Store a run with all its nodes and the tasks of those that may start. No row back means that the id is taken.
WITH run AS (
    INSERT INTO horsies_workflows (id, name, status, on_error, output_task_index, success_policy, definition_key,
                                   parent_workflow_id, parent_task_index, root_workflow_id, depth, sent_at, started_at)
    VALUES ($1, $2, 'RUNNING', $3, $4, $5::text::jsonb, $6, $7, $8, $9, $10, now(), now())
    ON CONFLICT DO NOTHING
    RETURNING id
), planned AS MATERIALIZED (
    SELECT run.id AS workflow_id, node.*
      FROM run
     CROSS JOIN jsonb_to_recordset($11::text::jsonb)
           AS node(id uuid, index integer, node_id text, name text, kwargs jsonb, queue_name text, priority smallint,
                   dependencies integer[], args_from jsonb, ctx_from text[], allow_failed_deps boolean, join_type text,
                   min_success integer, good_until timestamptz, options jsonb, max_retries integer,
                   is_subworkflow boolean, definition_key text, status text, task_id uuid)
), nodes AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, task_kwargs, queue_name,
                                        priority, dependencies, args_from, workflow_ctx_from, allow_failed_deps,
                                        join_type, min_success, good_until, task_options, max_retries, status, task_id,
                                        is_subworkflow, sub_workflow_name, sub_definition_key)
    SELECT id, workflow_id, index, node_id, name, kwargs, queue_name, priority, dependencies, args_from, ctx_from,
           allow_failed_deps, join_type, min_success, good_until, options, max_retries, status, task_id, is_subworkflow,
           CASE WHEN is_subworkflow THEN name END, definition_key
      FROM planned
), tasks AS (
    -- Nodes that start now wait for nobody, so there is nothing to hand them but who they are.
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, kwargs, sent_at, enqueued_at, good_until,
                               max_retries, task_options, flags, is_workflow_task, workflow_id, workflow_task_index,
                               context, enqueue_sha)
    SELECT task_id, name, queue_name, priority, kwargs, now(), clock_timestamp(), good_until, max_retries,
           options - 'flags', coalesce(options -> 'flags', '{}'), true, workflow_id, index,
           jsonb_build_object('workflow_meta', jsonb_build_object(
               'workflow_id', workflow_id, 'task_index', index, 'task_name', name)),
           encode(sha256(task_id::text::bytea), 'hex')
      FROM planned
     WHERE task_id IS NOT NULL
), children AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index, needs)
    SELECT id, workflow_id, index, definition_key FROM planned WHERE status = 'READY'
    RETURNING task_id
)
SELECT run.id
  FROM run
  LEFT JOIN LATERAL (SELECT pg_notify('horsies_workflow_due', run.id::text) FROM children LIMIT 1) AS said ON true;

-- name: has_outbox_entries
SELECT EXISTS (SELECT FROM horsies_workflow_outbox WHERE quarantined_at IS NULL) AS is_asked;

-- name: lock_due_runs
-- Lock the runs that have asked longest to be advanced. One that another hand holds comes back without a status.
WITH due AS MATERIALIZED (
    SELECT o.task_id, o.workflow_id
      FROM horsies_workflow_outbox AS o
     WHERE o.quarantined_at IS NULL AND o.needs IS NULL AND o.retry_at <= now()
       AND EXISTS (SELECT FROM horsies_workflows AS w WHERE w.id = o.workflow_id)
     ORDER BY o.created_at
     LIMIT $1
), locked AS MATERIALIZED (
    SELECT w.*
      FROM horsies_workflows AS w
     WHERE w.id = ANY(ARRAY(SELECT workflow_id FROM due))
     ORDER BY w.id
       FOR NO KEY UPDATE OF w SKIP LOCKED
)
-- Brought together by grouping: a worker's connection joins by looking keys up, for which neither of the two has an index.
-- What was set aside is answered with the rest: an advance does all that is due, so it would only be in the way of
-- healing.
SELECT id, max(status) AS status, max(on_error) AS on_error, max(success_policy) AS success_policy,
       max(output_task_index) AS output_task_index, array_remove(array_agg(task_id), NULL) AS asked
  FROM (SELECT workflow_id, true, task_id, NULL, NULL, NULL, NULL::integer FROM due
         UNION ALL
        SELECT workflow_id, false, task_id, NULL, NULL, NULL, NULL
          FROM horsies_workflow_outbox
         WHERE quarantined_at IS NOT NULL AND needs IS NULL
         UNION ALL
        SELECT id, false, NULL, status, on_error, success_policy::text, output_task_index FROM locked)
       AS found(id, is_due, task_id, status, on_error, success_policy, output_task_index)
 GROUP BY id
HAVING bool_or(is_due);

-- name: due_runs
-- The runs that ask to be advanced, for a look at each by itself.
SELECT DISTINCT o.workflow_id AS id
  FROM horsies_workflow_outbox AS o
 WHERE o.quarantined_at IS NULL AND o.needs IS NULL AND o.retry_at <= now()
 LIMIT $1;

-- name: lock_runs
-- Lock these runs, waiting for whoever holds one, and see what has asked for them.
WITH locked AS MATERIALIZED (
    SELECT * FROM horsies_workflows WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE
)
SELECT w.id, w.status, w.on_error, w.success_policy::text AS success_policy, w.output_task_index,
       ARRAY(SELECT o.task_id
               FROM horsies_workflow_outbox AS o
              WHERE o.workflow_id = w.id AND o.needs IS NULL) AS asked
  FROM locked AS w;

-- name: read_runs
-- Runs as they stand, without a lock.
SELECT id, status, on_error, success_policy::text AS success_policy, output_task_index, '{}'::uuid[] AS asked
  FROM horsies_workflows
 WHERE id = ANY($1::uuid[]);

-- name: run_nodes
-- The nodes of runs, each with how its task or its child ended where the node does not say so yet; one that stands for
-- either and has neither is bereft of it. A limit in a lateral join makes the planner look each up by its key, whatever
-- the statistics say.
SELECT n.workflow_id, n.id, n.task_index, n.node_id, n.dependencies, n.workflow_ctx_from, n.join_type, n.min_success,
       n.allow_failed_deps, n.is_subworkflow, n.sub_workflow_id,
       CASE WHEN t.terminal_at IS NOT NULL THEN t.status END AS task_status, t.no_restart AS mark,
       CASE WHEN t.result IS NULL THEN 'none'
            WHEN jsonb_typeof(t.result) = 'object' AND t.result ? 'ok' THEN 'ok'
            WHEN jsonb_typeof(t.result -> 'err') = 'object' THEN 'err'
            ELSE 'odd' END AS document,
       CASE WHEN child.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN child.status END AS child_status,
       n.status IN ('ENQUEUED', 'RUNNING') AND t.id IS NULL AND child.id IS NULL AS is_bereft,
       -- A sub-workflow whose start has been asked for is on its way.
       CASE WHEN n.status = 'READY' AND n.is_subworkflow
                 AND EXISTS (SELECT FROM horsies_workflow_outbox AS o WHERE o.task_id = n.id) THEN 'ENQUEUED'
            ELSE n.status END AS status
  FROM horsies_workflow_tasks AS n
  LEFT JOIN LATERAL (
       SELECT t.id, t.status, t.terminal_at, t.no_restart, t.result
         FROM horsies_tasks AS t
        WHERE t.id = n.task_id AND n.status IN ('ENQUEUED', 'RUNNING')
        LIMIT 1) AS t ON true
  LEFT JOIN LATERAL (
       SELECT child.id, child.status
         FROM horsies_workflows AS child
        WHERE child.id = n.sub_workflow_id AND n.status = 'RUNNING'
        LIMIT 1) AS child ON true
 WHERE n.workflow_id = ANY((SELECT $1::uuid[])::uuid[])
 ORDER BY n.workflow_id, n.task_index;

-- name: update_nodes
-- Move nodes whose run is locked, and forget what had asked for it. An end without an error of its own is the one that
-- is stored with the task or the child.
WITH asked AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[]), (SELECT $3::text[]), (SELECT $4::uuid[]))
           AS asked(id, status, error, task_id)
), held AS MATERIALIZED (
    SELECT n.id, n.task_id AS ended_id, n.sub_workflow_id, asked.status, asked.task_id, asked.error::jsonb AS error
      FROM asked
      JOIN horsies_workflow_tasks AS n ON n.id = asked.id AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
     ORDER BY n.id
       FOR NO KEY UPDATE OF n
), ends AS (
    SELECT held.id, held.status, held.task_id, child.summary,
           CASE WHEN held.error ? 'sub_workflow_id'
                THEN jsonb_set(held.error, '{sub_workflow_summary}', child.summary)
                ELSE coalesce(held.error, t.result -> 'err') END AS error,
           CASE WHEN child.id IS NOT NULL THEN child.result ELSE t.result END AS result
      FROM held
      LEFT JOIN horsies_tasks AS t ON t.id = held.ended_id
      LEFT JOIN LATERAL (
           SELECT w.id, horsies_run_summary(w) AS summary,
                  CASE WHEN w.output_task_index IS NULL THEN '{"ok": null}'::jsonb ELSE w.result END AS result
             FROM horsies_workflows AS w
            WHERE w.id = held.sub_workflow_id) AS child ON true
), moved AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = ends.status,
           task_id = CASE ends.status WHEN 'ENQUEUED' THEN ends.task_id
                                      WHEN 'READY' THEN NULL
                                      ELSE n.task_id END,
           result = CASE ends.status WHEN 'COMPLETED' THEN ends.result
                                     WHEN 'FAILED' THEN jsonb_build_object('err', ends.error) END,
           error = CASE WHEN ends.status IN ('FAILED', 'SKIPPED') THEN ends.error END,
           sub_workflow_summary = CASE WHEN ends.status IN ('COMPLETED', 'FAILED') THEN ends.summary END,
           completed_at = CASE WHEN ends.status IN ('COMPLETED', 'FAILED', 'SKIPPED') THEN now() END
      FROM ends
     WHERE n.id = ends.id
    RETURNING n.id, n.workflow_id, n.task_index, n.status, n.is_subworkflow, n.sub_definition_key
), children AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index, needs)
    SELECT id, workflow_id, task_index, sub_definition_key FROM moved WHERE status = 'READY' AND is_subworkflow
    ON CONFLICT DO NOTHING
), forgotten AS (
    DELETE FROM horsies_workflow_outbox WHERE task_id = ANY((SELECT $5::uuid[])::uuid[])
)
SELECT id FROM moved;

-- name: enqueue_nodes
-- Make the tasks of nodes that have just been given one, each with what its dependencies left for it.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, kwargs, sent_at, enqueued_at, good_until, max_retries,
                           task_options, flags, is_workflow_task, workflow_id, workflow_task_index, context,
                           enqueue_sha)
SELECT n.task_id, n.task_name, n.queue_name, n.priority, n.task_kwargs, now(), clock_timestamp(), n.good_until,
       n.max_retries, n.task_options - 'flags', coalesce(n.task_options -> 'flags', '{}'), true, n.workflow_id,
       n.task_index, horsies_node_context(n), encode(sha256(n.task_id::text::bytea), 'hex')
  FROM unnest((SELECT $1::uuid[])) AS asked(id)
  JOIN horsies_workflow_tasks AS n ON n.id = asked.id AND n.status = 'ENQUEUED'
ON CONFLICT DO NOTHING;

-- name: finish_runs
-- End runs whose nodes have all ended, and put the blame on a node where a run goes on without it (no status given).
-- The result is that of the output node, or a map over the nodes that nobody waits for.
WITH asked AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[]), (SELECT $3::integer[]), (SELECT $4::text[]),
                  (SELECT $5::text[])) AS asked(id, status, blamed, error, last_nodes)
), closed AS (
    UPDATE horsies_workflows AS w
       SET status = coalesce(asked.status, w.status),
           error = coalesce(asked.error::jsonb, (SELECT n.error
                                                   FROM horsies_workflow_tasks AS n
                                                  WHERE n.workflow_id = w.id AND n.task_index = asked.blamed)),
           result = CASE WHEN asked.status IS NULL THEN NULL
                         WHEN w.output_task_index IS NOT NULL
                         THEN (SELECT horsies_node_result(n)
                                 FROM horsies_workflow_tasks AS n
                                WHERE n.workflow_id = w.id AND n.task_index = w.output_task_index)
                         ELSE jsonb_build_object('ok', (
                              SELECT coalesce(jsonb_object_agg(n.node_id, horsies_node_result(n)), '{}')
                                FROM horsies_workflow_tasks AS n
                               WHERE n.workflow_id = w.id AND n.task_index = ANY(asked.last_nodes::integer[]))) END,
           completed_at = CASE WHEN asked.status IS NOT NULL THEN now() END,
           updated_at = now()
      FROM asked
     WHERE w.id = asked.id AND w.status = 'RUNNING'
    RETURNING w.id, asked.status, w.parent_workflow_id, w.parent_task_index
), parents AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, parent_workflow_id, parent_task_index
      FROM closed
     WHERE status IS NOT NULL AND parent_workflow_id IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT closed.id
  FROM closed
 CROSS JOIN LATERAL pg_notify('horsies_workflow_done', closed.id::text)
 WHERE closed.status IS NOT NULL;

-- name: record_advance_failure
-- What asked for a run that could not be advanced is tried again later, and ever more seldom; after too many tries it is
-- set aside for an hour at a time.
UPDATE horsies_workflow_outbox
   SET tries = tries + 1, last_error = $2,
       retry_at = now() + make_interval(secs => least(power(2, least(tries, 6)), 60)),
       quarantined_at = CASE WHEN tries + 1 >= $3 THEN now() END
 WHERE workflow_id = $1 AND needs IS NULL
RETURNING task_id AS id, quarantined_at IS NOT NULL AS is_quarantined;

-- name: pending_sub_workflows
-- Sub-workflows to be started, with what they are built from. One whose definition this process does not know comes
-- back only when it is time to say so again.
SELECT n.id, n.workflow_id, n.task_index, n.sub_definition_key AS definition_key, n.task_kwargs::text AS kwargs,
       horsies_node_context(n)::text AS context, w.root_workflow_id, w.depth, o.tries,
       o.created_at <= now() - interval '10 minutes' AS has_waited_long
  FROM horsies_workflow_outbox AS o
  JOIN horsies_workflow_tasks AS n ON n.id = o.task_id
  JOIN horsies_workflows AS w ON w.id = n.workflow_id
 WHERE o.quarantined_at IS NULL AND o.needs IS NOT NULL
   AND (o.retry_at <= now() OR (o.tries > 0 AND o.needs <> ALL($1::text[])))
 ORDER BY o.created_at
 LIMIT $2;

-- name: link_sub_workflow
-- The node stands for its child from now on; the start that was asked for is done.
WITH linked AS (
    UPDATE horsies_workflow_tasks
       SET status = 'RUNNING', sub_workflow_id = $2, started_at = now()
     WHERE id = $1 AND status = 'READY'
    RETURNING id
), forgotten AS (
    DELETE FROM horsies_workflow_outbox WHERE task_id = $1
)
SELECT id FROM linked;

-- name: lock_sub_workflow_start
-- Lock the run of a node and say whether the sub-workflow that the node stands for may be started; where it may not,
-- what asked for it is forgotten: a resume asks again. The root's lock is taken as well, so that whoever holds it to end
-- a tree is not outrun by its growth.
WITH locked AS MATERIALIZED (
    SELECT w.id, w.status
      FROM horsies_workflows AS w
     WHERE w.id IN ($2, $3)
     ORDER BY w.id
       FOR NO KEY UPDATE
), node AS (
    SELECT n.id
      FROM locked AS run
      JOIN horsies_workflow_tasks AS n ON n.id = $1 AND n.workflow_id = run.id AND n.status = 'READY'
     WHERE run.id = $2 AND run.status = 'RUNNING'
), forgotten AS (
    DELETE FROM horsies_workflow_outbox AS o WHERE o.task_id = $1 AND NOT EXISTS (SELECT FROM node)
)
SELECT id FROM node;

-- name: defer_unknown_definition
-- Nobody here knows the definition: somebody else may.
UPDATE horsies_workflow_outbox
   SET tries = tries + 1, last_error = $2, retry_at = now() + make_interval(secs => $3)
 WHERE task_id = $1;

-- name: ancestors
-- The sub-workflows that a node stands below, the nearest first, and whether each was built from what this one would be.
WITH RECURSIVE above AS (
    SELECT n.id, n.workflow_id, 0 AS distance FROM horsies_workflow_tasks AS n WHERE n.id = $1
     UNION ALL
    SELECT n.id, n.workflow_id, above.distance + 1
      FROM above
      JOIN horsies_workflows AS w ON w.id = above.workflow_id
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.parent_workflow_id AND n.task_index = w.parent_task_index
)
SELECT n.sub_definition_key AS definition_key,
       n.sub_definition_key = own.sub_definition_key AND n.task_kwargs = own.task_kwargs
           AND horsies_node_context(n) - 'workflow_meta' = horsies_node_context(own) - 'workflow_meta'
           AS is_built_from_the_same
  FROM above
  JOIN horsies_workflow_tasks AS n ON n.id = above.id
  JOIN horsies_workflow_tasks AS own ON own.id = $1
 WHERE above.distance > 0
 ORDER BY above.distance;

-- name: delete_unwanted_start
DELETE FROM horsies_workflow_outbox AS o
 WHERE o.task_id = $1 AND o.needs IS NOT NULL
   AND NOT EXISTS (SELECT FROM horsies_workflow_tasks AS n WHERE n.id = $1 AND n.status = 'READY');

-- name: quarantine_sub_workflow
UPDATE horsies_workflow_outbox SET tries = tries + 1, last_error = $2, quarantined_at = now() WHERE task_id = $1;
