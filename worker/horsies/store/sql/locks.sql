-- name: holders
-- Who holds the advisory locks with these purposes. What another role does can be seen only by members of
-- pg_read_all_stats; its name and application are always visible. A prepared transaction holds a lock without a process.
SELECT wanted.purpose, lock.pid, role.rolname::text AS role, activity.application_name,
       clock_timestamp() - activity.xact_start AS age,
       coalesce(has_table_privilege(activity.usesysid, 'horsies_tasks'::regclass::oid, 'UPDATE'::text), false) AS is_ours
  FROM (SELECT purpose, horsies_lock_key(purpose) AS key FROM pg_catalog.unnest($1::text[]) AS purpose) AS wanted
  JOIN pg_locks AS lock ON lock.locktype = 'advisory' AND lock.objsubid = 1::smallint AND lock.granted
                       AND lock.classid::bigint = (wanted.key >> 32) & 4294967295
                       AND lock.objid::bigint = wanted.key & 4294967295
  JOIN pg_database AS database ON database.oid = lock.database AND database.datname = current_database()
  LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
  LEFT JOIN pg_roles AS role ON role.oid = activity.usesysid
 WHERE lock.pid IS DISTINCT FROM pg_backend_pid()
 ORDER BY wanted.purpose, lock.pid;

-- name: claim_lock_purposes
-- The purposes of the locks that claims of the live workers may take.
SELECT DISTINCT 'claim/' || queue_name AS purpose
  FROM horsies_workers AS worker
 CROSS JOIN LATERAL pg_catalog.unnest(worker.queues) AS queue_name
 WHERE worker.state IN ('starting', 'running', 'draining');
