-- name: server
-- Facts about the server and this database; needs no table of ours.
SELECT current_setting('server_version')                                            AS server_version,
       current_schema()                                                             AS schema,
       pg_is_in_recovery()                                                          AS in_recovery,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections_used,
       current_setting('max_connections')::integer                                  AS connections_max,
       (SELECT max(extract(epoch FROM now() - xact_start))::double precision
          FROM pg_stat_activity
         WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid())                  AS oldest_transaction_s;

-- name: tables
SELECT relation.relname::text                            AS name,
       -- The planner's estimate is -1 before the first ANALYZE; the statistics know better until then.
       CASE WHEN relation.reltuples < 0 THEN pg_stat_get_live_tuples(relation.oid)
            ELSE relation.reltuples::bigint END          AS rows_estimate,
       pg_total_relation_size(relation.oid)              AS bytes
  FROM pg_class AS relation
  JOIN pg_namespace AS namespace ON namespace.oid = relation.relnamespace
 WHERE namespace.nspname = current_schema()
   AND relation.relkind = 'r'
   AND starts_with(relation.relname::text, 'horsies_')
 ORDER BY relation.relname;
