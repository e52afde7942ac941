-- What the running of workflows keeps beside the tables of runs and nodes.

ALTER TABLE horsies_workflow_tasks ADD COLUMN max_retries integer NOT NULL DEFAULT 0;

-- A row asks for its run to be advanced, or, where it names a definition, for the run of a sub-workflow to be started;
-- the second kind has the id of the node as its key, and waits for a process that knows the definition.
ALTER TABLE horsies_workflow_outbox
    ADD COLUMN needs    text,
    ADD COLUMN retry_at timestamptz NOT NULL DEFAULT now();

-- A node that never ran has no result; what it gives to others is the error that says so.
CREATE FUNCTION horsies_node_result(node horsies_workflow_tasks) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN node.status = 'SKIPPED' THEN jsonb_build_object('err', node.error) ELSE node.result END $$;

-- What a node is handed beside its own arguments: results of its dependencies as far as these have ended.
CREATE FUNCTION horsies_node_context(node horsies_workflow_tasks) RETURNS jsonb
    LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('workflow_meta', jsonb_build_object(
               'workflow_id', node.workflow_id, 'task_index', node.task_index, 'task_name', node.task_name))
        || CASE WHEN node.args_from = '{}' THEN '{}' ELSE jsonb_build_object('args_from', (
               SELECT coalesce(jsonb_object_agg(wanted.key, horsies_node_result(d)), '{}')
                 FROM jsonb_each(node.args_from) AS wanted
                 JOIN horsies_workflow_tasks AS d
                   ON d.workflow_id = node.workflow_id AND d.task_index = wanted.value::integer
                WHERE d.status IN ('COMPLETED', 'FAILED', 'SKIPPED'))) END
        || CASE WHEN node.workflow_ctx_from IS NULL THEN '{}' ELSE jsonb_build_object('workflow_ctx', (
               SELECT coalesce(jsonb_object_agg(d.node_id,
                          jsonb_build_object('result', horsies_node_result(d), 'task_name', d.task_name)
                          || CASE WHEN d.sub_workflow_summary IS NULL THEN '{}'
                                  ELSE jsonb_build_object('summary', d.sub_workflow_summary) END), '{}')
                 FROM horsies_workflow_tasks AS d
                WHERE d.workflow_id = node.workflow_id AND d.node_id = ANY(node.workflow_ctx_from))) END
$$;

-- How a run ended and how far it came, as the node that stands for it in its parent keeps it.
CREATE FUNCTION horsies_run_summary(run horsies_workflows) RETURNS jsonb
    LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
               'status', run.status,
               'output', CASE WHEN run.output_task_index IS NOT NULL THEN run.result -> 'ok' END,
               'total_tasks', count(*),
               'completed_tasks', count(*) FILTER (WHERE n.status = 'COMPLETED'),
               'failed_tasks', count(*) FILTER (WHERE n.status = 'FAILED'),
               'skipped_tasks', count(*) FILTER (WHERE n.status = 'SKIPPED'),
               'error_summary', concat_ws(': ', run.error ->> 'error_code', run.error ->> 'message'))
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = run.id
$$;
