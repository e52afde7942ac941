-- name: tables
SELECT stat.relname::text                               AS name,
       pg_total_relation_size(stat.relid)               AS bytes,
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
