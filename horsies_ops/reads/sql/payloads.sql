-- name: payloads
-- What tasks were given, where that is short; the size alone tells, without reading what is stored elsewhere.
SELECT id, size, CASE WHEN size <= $2 THEN args::text END AS args_json,
       CASE WHEN size <= $2 THEN kwargs::text END AS kwargs_json
  FROM (SELECT id, args, kwargs, pg_column_size(args) + pg_column_size(kwargs) AS size
          FROM horsies_tasks
         WHERE id = ANY ($1::uuid[])) AS given;
