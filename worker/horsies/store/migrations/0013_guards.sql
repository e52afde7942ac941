-- Protection against other roles of the database: functions that call only what they mean, waits that end, rows that every
-- reader understands, and an audit log that says which role wrote an entry.

-- Functions. Names of built-in functions are qualified, and arguments have the declared types: a function that someone
-- plants in our schema must not match a call better than the built-in one.

CREATE OR REPLACE FUNCTION horsies_lock_key(purpose text) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT pg_catalog.hashtextextended(pg_catalog.current_schema()::text || '/' || purpose, 0::bigint) $$;

-- `lock_timeout` ends the wait for a lock that a stranger holds: any role that may connect can take it.
CREATE OR REPLACE FUNCTION horsies_lock_in_flight(cluster_is_capped boolean, capped_queues text[])
    RETURNS TABLE (queue_name text, tasks bigint)
    LANGUAGE plpgsql ROWS 10
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET lock_timeout = '3s'
AS $$
BEGIN
    IF cluster_is_capped THEN
        PERFORM pg_catalog.pg_advisory_xact_lock(horsies_lock_key('claim'));
    END IF;
    PERFORM pg_catalog.pg_advisory_xact_lock(capped.key)
       FROM (SELECT horsies_lock_key('claim/' || queue) AS key
               FROM pg_catalog.unnest(capped_queues) AS queue
              ORDER BY key) AS capped;
    RETURN QUERY
    SELECT t.queue_name, pg_catalog.count(*)
      FROM horsies_tasks AS t
     WHERE t.status IN ('CLAIMED', 'RUNNING')
       AND (t.status = 'RUNNING' OR t.claim_expires_at IS NULL OR t.claim_expires_at > pg_catalog.now())
     GROUP BY t.queue_name;
END
$$;

-- The payload of a notification is limited to 8,000 bytes; a row stored before the limit on names may have a longer one.
CREATE OR REPLACE FUNCTION horsies_announce_new_tasks() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    -- A worker finds delayed tasks at their due time or at its next poll.
    PERFORM pg_catalog.pg_notify('horsies_task_new', due.queue_name)
       FROM (SELECT DISTINCT pg_catalog.left(added.queue_name, 255) AS queue_name
               FROM added
              WHERE added.status = 'PENDING' AND added.enqueued_at <= pg_catalog.clock_timestamp()) AS due;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION horsies_node_result(node horsies_workflow_tasks) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN node.status = 'SKIPPED' THEN pg_catalog.jsonb_build_object('err', node.error) ELSE node.result END
$$;

CREATE OR REPLACE FUNCTION horsies_node_context(node horsies_workflow_tasks) RETURNS jsonb
    LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.jsonb_build_object('workflow_meta', pg_catalog.jsonb_build_object(
               'workflow_id', node.workflow_id, 'task_index', node.task_index, 'task_name', node.task_name))
        || CASE WHEN node.args_from = '{}' THEN '{}' ELSE pg_catalog.jsonb_build_object('args_from', (
               SELECT coalesce(pg_catalog.jsonb_object_agg(wanted.key, horsies_node_result(d)), '{}')
                 FROM pg_catalog.jsonb_each(node.args_from) AS wanted
                 JOIN horsies_workflow_tasks AS d
                   ON d.workflow_id = node.workflow_id AND d.task_index = wanted.value::integer
                WHERE d.status IN ('COMPLETED', 'FAILED', 'SKIPPED'))) END
        || CASE WHEN node.workflow_ctx_from IS NULL THEN '{}' ELSE pg_catalog.jsonb_build_object('workflow_ctx', (
               SELECT coalesce(pg_catalog.jsonb_object_agg(d.node_id,
                          pg_catalog.jsonb_build_object('result', horsies_node_result(d), 'task_name', d.task_name)
                          || CASE WHEN d.sub_workflow_summary IS NULL THEN '{}'
                                  ELSE pg_catalog.jsonb_build_object('summary', d.sub_workflow_summary) END), '{}')
                 FROM horsies_workflow_tasks AS d
                WHERE d.workflow_id = node.workflow_id AND d.node_id = ANY(node.workflow_ctx_from))) END
$$;

CREATE OR REPLACE FUNCTION horsies_run_summary(run horsies_workflows) RETURNS jsonb
    LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.jsonb_build_object(
               'status', run.status,
               'output', CASE WHEN run.output_task_index IS NOT NULL THEN run.result -> 'ok'::text END,
               'total_tasks', pg_catalog.count(*),
               'completed_tasks', pg_catalog.count(*) FILTER (WHERE n.status = 'COMPLETED'),
               'failed_tasks', pg_catalog.count(*) FILTER (WHERE n.status = 'FAILED'),
               'skipped_tasks', pg_catalog.count(*) FILTER (WHERE n.status = 'SKIPPED'),
               'error_summary', pg_catalog.concat_ws(': ', run.error ->> 'error_code'::text,
                                                     run.error ->> 'message'::text))
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = run.id
$$;

-- What every reader of a task relies on: the types of its JSON columns, and names of a sensible length. A domain, for the
-- same reason as the state of a task (0010). Rows that break a rule already may still be claimed, retried and ended: the
-- rules hold until the first claim, and none of these changes is stopped by them.

CREATE TYPE horsies_task_shape AS (
    args         text,
    kwargs       text,
    task_options text,
    flags        text,
    task_name    integer,
    queue_name   integer
);

CREATE DOMAIN horsies_sound_task_shape AS horsies_task_shape
    CONSTRAINT horsies_tasks_args CHECK ((VALUE).args = 'array')
    CONSTRAINT horsies_tasks_kwargs CHECK ((VALUE).kwargs = 'object')
    CONSTRAINT horsies_tasks_task_options CHECK ((VALUE).task_options = 'object')
    CONSTRAINT horsies_tasks_flags CHECK ((VALUE).flags = 'object')
    CONSTRAINT horsies_tasks_task_name CHECK ((VALUE).task_name BETWEEN 1 AND 255)
    CONSTRAINT horsies_tasks_queue_name CHECK ((VALUE).queue_name BETWEEN 1 AND 255);

ALTER TABLE horsies_tasks
    ADD CONSTRAINT horsies_tasks_shape CHECK (
        claim_token > 0 OR terminal_at IS NOT NULL
        OR (ROW (pg_catalog.jsonb_typeof(args), pg_catalog.jsonb_typeof(kwargs), pg_catalog.jsonb_typeof(task_options),
                 pg_catalog.jsonb_typeof(flags), pg_catalog.length(task_name), pg_catalog.length(queue_name)
                )::horsies_sound_task_shape).args IS NOT NULL) NOT VALID;

ALTER TABLE horsies_workflow_tasks
    ADD CONSTRAINT horsies_workflow_tasks_shape CHECK (
        status NOT IN ('PENDING', 'READY')
        OR (pg_catalog.jsonb_typeof(task_args) = 'array' AND pg_catalog.jsonb_typeof(task_kwargs) = 'object'
            AND pg_catalog.jsonb_typeof(args_from) = 'object' AND pg_catalog.jsonb_typeof(task_options) = 'object'
            AND pg_catalog.length(task_name) <= 255 AND pg_catalog.length(node_id) <= 255
            AND pg_catalog.length(queue_name) <= 255)) NOT VALID;

ALTER TABLE horsies_queues
    ADD CONSTRAINT horsies_queues_name CHECK (pg_catalog.length(queue_name) BETWEEN 1 AND 255) NOT VALID;

-- Who wrote an audit entry, as far as the server knows; `actor` is what the client says. Entries from before have neither.

ALTER TABLE horsies_audit
    ADD COLUMN db_role     text,
    ADD COLUMN client_addr inet;
ALTER TABLE horsies_audit
    ALTER COLUMN db_role     SET DEFAULT session_user,
    ALTER COLUMN client_addr SET DEFAULT pg_catalog.inet_client_addr();
