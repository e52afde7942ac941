-- name: insert_run
-- Insert a run with all its nodes and the tasks of nodes that can start now. Returns no row if the id is taken.
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
                   dependencies integer[], dependents integer[], args_from jsonb, ctx_from text[],
                   allow_failed_deps boolean, join_type text, min_success integer, good_until timestamptz, options jsonb, max_retries integer,
                   is_subworkflow boolean, definition_key text, status text, task_id uuid)
), nodes AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, task_kwargs, queue_name,
                                        priority, dependencies, dependents, args_from, workflow_ctx_from,
                                        allow_failed_deps, join_type, min_success, good_until, task_options, max_retries, status, task_id,
                                        is_subworkflow, sub_workflow_name, sub_definition_key)
    SELECT id, workflow_id, index, node_id, name, kwargs, queue_name, priority, dependencies, dependents, args_from,
           ctx_from, allow_failed_deps, join_type, min_success, good_until, options, max_retries, status, task_id,
           is_subworkflow, CASE WHEN is_subworkflow THEN name END, definition_key
      FROM planned
), tasks AS (
    -- These nodes have no dependencies, so their context holds only the workflow metadata.
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, kwargs, sent_at, enqueued_at, good_until,
                               max_retries, task_options, flags, is_workflow_task, workflow_id, workflow_task_index,
                               context, enqueue_sha)
    SELECT task_id, name, queue_name, priority, kwargs, now(), clock_timestamp(), good_until, max_retries,
           options - 'flags'::text, coalesce(options -> 'flags'::text, '{}'), true, workflow_id, index,
           pg_catalog.jsonb_build_object('workflow_meta', pg_catalog.jsonb_build_object(
               'workflow_id', workflow_id, 'task_index', index, 'task_name', name)),
           encode(sha256(task_id::text::bytea), 'hex')
      FROM planned
     WHERE task_id IS NOT NULL
), sub_workflow_starts AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index, needs)
    SELECT id, workflow_id, index, definition_key FROM planned WHERE status = 'READY'
    RETURNING task_id
)
SELECT run.id
  FROM run
  LEFT JOIN LATERAL (SELECT pg_notify('horsies_workflow_due', run.id::text)
                       FROM sub_workflow_starts
                      LIMIT 1) AS notified ON true;

-- name: run_results
-- Status and result of runs; the result comes from task `output_name` or sub-workflow `output_definition_key`.
SELECT w.id::text AS id, w.definition_key, w.status, w.result::text AS document, w.error::text AS error,
       w.output_task_index IS NULL AS is_map,
       CASE WHEN NOT n.is_subworkflow THEN n.task_name END AS output_name,
       n.sub_definition_key AS output_definition_key
  FROM horsies_workflows AS w
  LEFT JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id AND n.task_index = w.output_task_index
 WHERE w.id = ANY($1::uuid[]);

-- name: node_infos
-- A node stays ENQUEUED until its task has ended: that it is running is stored in the task only. `status || ''` keeps a
-- plan made on empty tables from reading the tasks of all workers.
SELECT n.node_id, n.task_index, n.task_name, coalesce(t.status, n.status) AS status, n.task_id, n.is_subworkflow,
       n.sub_definition_key AS definition_key, n.sub_workflow_id, n.result::text AS document,
       coalesce(n.started_at, t.started_at) AS started_at, n.completed_at
  FROM horsies_workflow_tasks AS n
  LEFT JOIN horsies_tasks AS t ON t.id = n.task_id AND n.status = 'ENQUEUED' AND t.status || '' = 'RUNNING'
 WHERE n.workflow_id = $1
 ORDER BY n.task_index;

-- name: lock_due_runs
-- Lock the runs with the oldest outbox entries. A run locked by another transaction is returned without a status.
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
-- GROUP BY in place of a join: a worker's session disables sequential scans, and the CTEs have no index to join on.
-- Quarantined entries are included: an advance does everything that is due, so it settles them too.
SELECT id, max(status) AS status, max(on_error) AS on_error, max(success_policy) AS success_policy,
       max(output_task_index) AS output_task_index,
       pg_catalog.array_remove(pg_catalog.array_agg(task_id), NULL) AS outbox_ids
  FROM (SELECT workflow_id, true, task_id, NULL, NULL, NULL, NULL::integer FROM due
         UNION ALL
        SELECT workflow_id, false, task_id, NULL, NULL, NULL, NULL
          FROM horsies_workflow_outbox
         WHERE quarantined_at IS NOT NULL AND needs IS NULL
         UNION ALL
        SELECT id, false, NULL, status, on_error, success_policy::text, output_task_index FROM locked)
       AS entry(id, is_due, task_id, status, on_error, success_policy, output_task_index)
 GROUP BY id
HAVING bool_or(is_due);

-- name: due_runs
-- Runs with due outbox entries, to be advanced one by one.
SELECT DISTINCT o.workflow_id AS id
  FROM horsies_workflow_outbox AS o
 WHERE o.quarantined_at IS NULL AND o.needs IS NULL AND o.retry_at <= now()
 LIMIT $1;

-- name: lock_runs
-- Lock these runs, waiting for other transactions, and return their outbox entries.
WITH locked AS MATERIALIZED (
    SELECT * FROM horsies_workflows WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE
)
SELECT w.id, w.status, w.on_error, w.success_policy::text AS success_policy, w.output_task_index,
       ARRAY(SELECT o.task_id
               FROM horsies_workflow_outbox AS o
              WHERE o.workflow_id = w.id AND o.needs IS NULL) AS outbox_ids
  FROM locked AS w;

-- name: read_runs
-- Read runs without locking them.
SELECT id, status, on_error, success_policy::text AS success_policy, output_task_index, '{}'::uuid[] AS outbox_ids
  FROM horsies_workflows
 WHERE id = ANY($1::uuid[]);

-- name: run_nodes
-- All nodes of runs.
{{ node_states(false) }}
 WHERE n.workflow_id = ANY((SELECT $1::uuid[])::uuid[])
 ORDER BY n.workflow_id, n.task_index;

-- name: ended_nodes
-- The nodes of these outbox entries and their dependents, with the statuses of what those depend on. For a node without
-- dependents, one other node of its run that has not ended, if there is one: without it, the run may have ended too.
-- Returns nothing of a run with an entry that names no node, or one without a list of dependents, stored before that was
-- introduced.
WITH entry AS MATERIALIZED (
    SELECT o.workflow_id, n.id, n.dependents
      FROM horsies_workflow_outbox AS o
      LEFT JOIN LATERAL (
           SELECT n.id, n.dependents
             FROM horsies_workflow_tasks AS n
            WHERE n.workflow_id = o.workflow_id AND n.task_index = o.task_index
            LIMIT 1) AS n ON true
     WHERE o.task_id = ANY((SELECT $1::uuid[])::uuid[])
), ended AS MATERIALIZED (
    SELECT id, workflow_id, dependents
      FROM entry
     WHERE workflow_id NOT IN (SELECT workflow_id FROM entry WHERE dependents IS NULL)
), part AS MATERIALIZED (
    SELECT id FROM ended
     UNION
    SELECT n.id
      FROM (SELECT DISTINCT workflow_id, pg_catalog.unnest(dependents) AS task_index FROM ended) AS dependent
     CROSS JOIN LATERAL (
           SELECT n.id
             FROM horsies_workflow_tasks AS n
            WHERE n.workflow_id = dependent.workflow_id AND n.task_index = dependent.task_index
            LIMIT 1) AS n
     UNION
    SELECT n.id
      FROM (SELECT DISTINCT workflow_id FROM ended WHERE pg_catalog.cardinality(dependents) = 0) AS run
     CROSS JOIN LATERAL (
           SELECT n.id
             FROM horsies_workflow_tasks AS n
            WHERE n.workflow_id = run.workflow_id AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
              AND n.id <> ALL(ARRAY(SELECT id FROM ended))
            -- From the end: nodes start in the order of their indexes.
            ORDER BY n.task_index DESC
            LIMIT 1) AS n
)
{{ node_states(true) }}
 WHERE n.id = ANY(ARRAY(SELECT id FROM part))
 ORDER BY n.workflow_id, n.task_index;

-- name: update_nodes
-- Update nodes of locked runs and delete the outbox entries that are settled by it. A node that ends without an error
-- given takes the result and error of its task or sub-workflow. Nodes change only under the lock of their run, so they
-- need no locks of their own.
WITH input AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[]), (SELECT $3::text[]), (SELECT $4::uuid[]))
           AS input(id, status, error, task_id)
), unfinished AS MATERIALIZED (
    SELECT n.id, n.task_id AS old_task_id, n.sub_workflow_id, input.status, input.task_id, input.error::jsonb AS error
      FROM input
      JOIN horsies_workflow_tasks AS n ON n.id = input.id AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
), new_values AS (
    SELECT unfinished.id, unfinished.status, unfinished.task_id, sub_run.summary, t.started_at,
           CASE WHEN unfinished.error ? 'sub_workflow_id'::text
                THEN jsonb_set(unfinished.error, '{sub_workflow_summary}', sub_run.summary)
                ELSE coalesce(unfinished.error, t.result -> 'err'::text) END AS error,
           CASE WHEN sub_run.id IS NOT NULL THEN sub_run.result ELSE t.result END AS result
      FROM unfinished
      LEFT JOIN horsies_tasks AS t ON t.id = unfinished.old_task_id
      LEFT JOIN LATERAL (
           SELECT w.id, horsies_run_summary(w) AS summary,
                  CASE WHEN w.output_task_index IS NULL THEN '{"ok": null}'::jsonb ELSE w.result END AS result
             FROM horsies_workflows AS w
            WHERE w.id = unfinished.sub_workflow_id) AS sub_run ON true
), updated AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = new_values.status,
           task_id = CASE new_values.status WHEN 'ENQUEUED' THEN new_values.task_id
                                      WHEN 'READY' THEN NULL
                                      ELSE n.task_id END,
           result = CASE new_values.status WHEN 'COMPLETED' THEN new_values.result
                                     WHEN 'FAILED' THEN pg_catalog.jsonb_build_object('err', new_values.error) END,
           error = CASE WHEN new_values.status IN ('FAILED', 'SKIPPED') THEN new_values.error END,
           sub_workflow_summary = CASE WHEN new_values.status IN ('COMPLETED', 'FAILED') THEN new_values.summary END,
           started_at = coalesce(n.started_at, new_values.started_at),
           completed_at = CASE WHEN new_values.status IN ('COMPLETED', 'FAILED') THEN now() END
      FROM new_values
     WHERE n.id = new_values.id
    RETURNING n.id, n.workflow_id, n.task_index, n.status, n.is_subworkflow, n.sub_definition_key
), sub_workflow_starts AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index, needs)
    SELECT id, workflow_id, task_index, sub_definition_key FROM updated WHERE status = 'READY' AND is_subworkflow
    ON CONFLICT DO NOTHING
), deleted_outbox AS (
    DELETE FROM horsies_workflow_outbox WHERE task_id = ANY((SELECT $5::uuid[])::uuid[])
)
SELECT id FROM updated;

-- name: enqueue_nodes
-- Insert the tasks of nodes that became ENQUEUED, each with the results of its dependencies.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, kwargs, sent_at, enqueued_at, good_until, max_retries,
                           task_options, flags, is_workflow_task, workflow_id, workflow_task_index, context,
                           enqueue_sha)
SELECT n.task_id, n.task_name, n.queue_name, n.priority, n.task_kwargs, now(), clock_timestamp(), n.good_until,
       n.max_retries, n.task_options - 'flags'::text, coalesce(n.task_options -> 'flags'::text, '{}'), true,
       n.workflow_id,
       n.task_index, horsies_node_context(n), encode(sha256(n.task_id::text::bytea), 'hex')
  FROM pg_catalog.unnest((SELECT $1::uuid[])) WITH ORDINALITY AS input(id, position)
  JOIN horsies_workflow_tasks AS n ON n.id = input.id AND n.status = 'ENQUEUED'
 -- clock_timestamp() is evaluated after the sort, so the tasks are claimed in this order.
 ORDER BY input.position
ON CONFLICT DO NOTHING;

-- name: finish_runs
-- Finish runs whose nodes have all ended. With no status given only the error of the failed node is stored and the run
-- continues. The result is that of the output node, or a map over the leaf nodes.
WITH input AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::text[]), (SELECT $3::integer[]), (SELECT $4::text[]),
                  (SELECT $5::text[])) AS input(id, status, failed_index, error, leaf_indexes)
), finished AS (
    UPDATE horsies_workflows AS w
       SET status = coalesce(input.status, w.status),
           error = coalesce(input.error::jsonb, (SELECT n.error
                                                   FROM horsies_workflow_tasks AS n
                                                  WHERE n.workflow_id = w.id AND n.task_index = input.failed_index)),
           result = CASE WHEN input.status IS NULL THEN NULL
                         WHEN w.output_task_index IS NOT NULL
                         THEN (SELECT horsies_node_result(n)
                                 FROM horsies_workflow_tasks AS n
                                WHERE n.workflow_id = w.id AND n.task_index = w.output_task_index)
                         ELSE pg_catalog.jsonb_build_object('ok', (
                              SELECT coalesce(pg_catalog.jsonb_object_agg(n.node_id, horsies_node_result(n)), '{}')
                                FROM horsies_workflow_tasks AS n
                               WHERE n.workflow_id = w.id AND n.task_index = ANY(input.leaf_indexes::integer[]))) END,
           completed_at = CASE WHEN input.status IS NOT NULL THEN now() END,
           updated_at = now()
      FROM input
     WHERE w.id = input.id AND w.status = 'RUNNING'
    RETURNING w.id, input.status, w.parent_workflow_id AS workflow_id, w.parent_task_index AS workflow_task_index
), parent_outbox AS (
    {{ insert_outbox(finished WHERE status IS NOT NULL AND workflow_id IS NOT NULL) }}
)
SELECT finished.id
  FROM finished
 CROSS JOIN LATERAL pg_notify('horsies_workflow_done', finished.id::text)
 WHERE finished.status IS NOT NULL;

-- name: record_advance_failure
-- Postpone the outbox entries of a run that could not be advanced, with exponential backoff; after $3 tries they are
-- quarantined.
UPDATE horsies_workflow_outbox
   SET tries = tries + 1, last_error = $2,
       -- The inner least() keeps power() from overflowing.
       retry_at = now() + pg_catalog.make_interval(secs => least(pg_catalog.power(2, least(tries, 6)), 60)),
       quarantined_at = CASE WHEN tries + 1 >= $3 THEN now() END
 WHERE workflow_id = $1 AND needs IS NULL
RETURNING quarantined_at IS NOT NULL;

-- name: pending_sub_workflows
-- Sub-workflows to start, with their inputs. One whose definition this process does not know ($1) is returned only when
-- its retry_at has passed.
SELECT n.id, n.workflow_id, n.task_index, n.sub_definition_key AS definition_key, n.task_kwargs::text AS kwargs,
       horsies_node_context(n)::text AS context, w.root_workflow_id, w.depth, o.tries,
       extract(epoch FROM now() - o.created_at)::double precision AS waited_s
  FROM horsies_workflow_outbox AS o
  JOIN horsies_workflow_tasks AS n ON n.id = o.task_id
  JOIN horsies_workflows AS w ON w.id = n.workflow_id
 WHERE o.quarantined_at IS NULL AND o.needs IS NOT NULL
   -- Another worker that does not know the definition may have postponed the start; here it is due at once.
   AND (o.retry_at <= now() OR (o.tries > 0 AND o.needs <> ALL($1::text[])))
 ORDER BY o.created_at
 LIMIT $2;

-- name: link_sub_workflow
-- Link a node to its sub-workflow run and delete the start request.
WITH linked AS (
    UPDATE horsies_workflow_tasks
       SET status = 'RUNNING', sub_workflow_id = $2, started_at = now()
     WHERE id = $1 AND status = 'READY'
    RETURNING id
), deleted_outbox AS (
    DELETE FROM horsies_workflow_outbox WHERE task_id = $1
)
SELECT id FROM linked;

-- name: lock_sub_workflow_start
-- Lock the run of a node and return the node if its sub-workflow may be started; otherwise delete the start request (a
-- resume inserts a new one). The root run is locked too: ending a tree takes the same lock, so the tree cannot grow
-- meanwhile.
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
), deleted_outbox AS (
    DELETE FROM horsies_workflow_outbox AS o WHERE o.task_id = $1 AND NOT EXISTS (SELECT FROM node)
)
SELECT id FROM node;

-- name: defer_unknown_definition
-- Postpone a start whose definition this worker does not know; another worker may know it.
UPDATE horsies_workflow_outbox
   SET tries = tries + 1, last_error = $2, retry_at = now() + pg_catalog.make_interval(secs => $3)
 WHERE task_id = $1;

-- name: ancestors
-- Sub-workflows above a node, nearest first, and whether each has the same definition and inputs as this one.
WITH RECURSIVE ancestor AS (
    SELECT n.id, n.workflow_id, 0 AS distance FROM horsies_workflow_tasks AS n WHERE n.id = $1
     UNION ALL
    SELECT n.id, n.workflow_id, ancestor.distance + 1
      FROM ancestor
      JOIN horsies_workflows AS w ON w.id = ancestor.workflow_id
      JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.parent_workflow_id AND n.task_index = w.parent_task_index
)
SELECT n.sub_definition_key AS definition_key,
       n.sub_definition_key = own.sub_definition_key AND n.task_kwargs = own.task_kwargs
           -- workflow_meta names the run and node itself, so it always differs.
           AND horsies_node_context(n) - 'workflow_meta'::text = horsies_node_context(own) - 'workflow_meta'::text
           AS has_same_inputs
  FROM ancestor
  JOIN horsies_workflow_tasks AS n ON n.id = ancestor.id
  JOIN horsies_workflow_tasks AS own ON own.id = $1
 WHERE ancestor.distance > 0
 ORDER BY ancestor.distance;

-- name: delete_unwanted_start
DELETE FROM horsies_workflow_outbox AS o
 WHERE o.task_id = $1 AND o.needs IS NOT NULL
   AND NOT EXISTS (SELECT FROM horsies_workflow_tasks AS n WHERE n.id = $1 AND n.status = 'READY');

-- name: quarantine_sub_workflow
UPDATE horsies_workflow_outbox SET tries = tries + 1, last_error = $2, quarantined_at = now() WHERE task_id = $1;
