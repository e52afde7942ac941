-- name: server_info
-- The server and this database; needs none of our tables.
SELECT current_setting('server_version')                                            AS server_version,
       current_schema()                                                             AS schema,
       pg_is_in_recovery()                                                          AS in_recovery,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections_used,
       current_setting('max_connections')::integer                                  AS connections_max,
       (SELECT max(extract(epoch FROM now() - xact_start))::double precision
          FROM pg_stat_activity
         WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid())                  AS oldest_transaction_s;

-- name: table_sizes
SELECT relation.relname::text                            AS name,
       -- reltuples is -1 before the first ANALYZE; until then the statistics collector has a better number.
       CASE WHEN relation.reltuples < 0::real THEN pg_stat_get_live_tuples(relation.oid)
            ELSE relation.reltuples::bigint END          AS rows_estimate,
       pg_catalog.pg_total_relation_size(relation.oid)              AS bytes
  FROM pg_class AS relation
  JOIN pg_namespace AS namespace ON namespace.oid = relation.relnamespace
 WHERE namespace.nspname = current_schema()
   AND relation.relkind = 'r'
   AND starts_with(relation.relname::text, 'horsies_')
 ORDER BY relation.relname;

-- name: table_storage
SELECT stat.relname::text                               AS name,
       pg_catalog.pg_total_relation_size(stat.relid)               AS bytes,
       stat.n_live_tup                                  AS rows,
       stat.n_dead_tup                                  AS dead_rows,
       greatest(stat.last_vacuum, stat.last_autovacuum) AS last_vacuum_at
  FROM pg_stat_user_tables AS stat
 WHERE stat.schemaname = current_schema() AND starts_with(stat.relname::text, 'horsies_')
 ORDER BY bytes DESC, name;

-- name: oldest_transaction
SELECT pid, application_name, state, now() - xact_start AS age
  FROM pg_stat_activity
 WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
   AND backend_type = 'client backend'
 ORDER BY xact_start
 LIMIT 1;

-- name: notify_queue
SELECT pg_notification_queue_usage() AS usage;

-- name: orphans
-- Claimed and running tasks whose worker has stopped, is lost or was deleted.
SELECT count(*) AS tasks
  FROM horsies_tasks AS task
  LEFT JOIN horsies_workers AS owner ON owner.id = task.claimed_by_worker_id
 WHERE task.status IN ('CLAIMED', 'RUNNING') AND (owner.id IS NULL OR owner.state IN ('stopped', 'lost'));

-- name: outbox
SELECT count(*) FILTER (WHERE quarantined_at IS NULL)                   AS waiting,
       count(*) FILTER (WHERE quarantined_at IS NOT NULL)               AS quarantined,
       now() - min(created_at) FILTER (WHERE quarantined_at IS NULL)    AS oldest
  FROM horsies_workflow_outbox;

-- name: oldest_by_category
-- Age of the oldest row that retention may delete, by category; categories without rows are left out.
SELECT category, now() - ended_at AS age
  FROM (VALUES ('heartbeats', (SELECT sent_at FROM horsies_spent_heartbeats ORDER BY sent_at LIMIT 1)),
               ('worker_states', (SELECT snapshot_at FROM horsies_worker_states ORDER BY snapshot_at LIMIT 1)),
               ('workers', (SELECT min(ended_at) FROM horsies_ended_workers)),
               ('workflows', (SELECT completed_at FROM horsies_ended_trees ORDER BY completed_at LIMIT 1)),
               ('tasks', (SELECT terminal_at FROM horsies_ended_tasks ORDER BY terminal_at LIMIT 1)),
               ('events', (SELECT at FROM horsies_events ORDER BY at LIMIT 1)),
               ('audit', (SELECT at FROM horsies_old_audit ORDER BY at LIMIT 1))) AS kept(category, ended_at)
 WHERE ended_at IS NOT NULL;

-- name: search_path
-- The search_path of a new session, before any SET.
SELECT reset_val AS search_path FROM pg_settings WHERE name = 'search_path';

-- name: now
-- Not now(), which is the start of the transaction.
SELECT clock_timestamp() AS at;
