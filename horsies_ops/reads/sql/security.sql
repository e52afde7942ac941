-- name: access
-- Roles that may create functions in our schema although they own neither it nor our tables, and whether roles that have
-- nothing to do with us may connect. No row if the schema does not exist.
WITH place AS (
    SELECT space.oid AS schema_id, space.nspowner AS schema_owner, tasks.oid AS tasks_id, tasks.relowner AS table_owner
      FROM pg_namespace AS space
      LEFT JOIN pg_class AS tasks ON tasks.relnamespace = space.oid AND tasks.relname = 'horsies_tasks'
     WHERE space.nspname = current_schema()
), stranger AS (
    SELECT role.oid, role.rolname, role.rolcanlogin
      FROM pg_roles AS role
     CROSS JOIN place
     WHERE NOT role.rolsuper AND NOT starts_with(role.rolname::text, 'pg_')
       AND NOT pg_has_role(role.oid, place.schema_owner, 'USAGE')
       AND NOT coalesce(pg_has_role(role.oid, place.table_owner, 'USAGE'), false)
)
SELECT current_schema()::text AS schema,
       CASE WHEN has_schema_privilege('public', place.schema_id, 'CREATE') THEN ARRAY['PUBLIC']::text[]
            ELSE ARRAY(SELECT stranger.rolname::text
                         FROM stranger
                        WHERE has_schema_privilege(stranger.oid, place.schema_id, 'CREATE')
                        ORDER BY stranger.rolname) END AS creators,
       has_database_privilege('public', current_database()::text, 'CONNECT')
       AND EXISTS (SELECT
                     FROM stranger
                    WHERE stranger.rolcanlogin
                      AND NOT coalesce(has_any_column_privilege(stranger.oid, place.tasks_id, 'SELECT,INSERT'), false))
           AS is_open_to_strangers,
       current_database()::text AS database
  FROM place;

-- name: malformed_tasks
-- Tasks that break a rule of their table, because they were stored before the rule or changed by hand. Looks at the
-- newest and at unfinished ones, a limited number of both.
WITH candidate AS (
    (SELECT id FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING') LIMIT 20000)
     UNION
    (SELECT id FROM horsies_tasks ORDER BY id DESC LIMIT 20000)
)
SELECT t.id, broken.columns
  FROM candidate
  JOIN horsies_tasks AS t ON t.id = candidate.id
 CROSS JOIN LATERAL (
       SELECT pg_catalog.concat_ws(', ',
                  CASE WHEN jsonb_typeof(t.args) <> 'array' THEN 'args' END,
                  CASE WHEN jsonb_typeof(t.kwargs) <> 'object' THEN 'kwargs' END,
                  CASE WHEN jsonb_typeof(t.task_options) <> 'object' THEN 'task_options' END,
                  CASE WHEN jsonb_typeof(t.flags) <> 'object' THEN 'flags' END,
                  CASE WHEN length(t.task_name) NOT BETWEEN 1 AND 255 THEN 'task_name' END,
                  CASE WHEN length(t.queue_name) NOT BETWEEN 1 AND 255 THEN 'queue_name' END) AS columns) AS broken
 WHERE broken.columns <> ''
 ORDER BY t.id DESC
 LIMIT $1;
