-- name: live
SELECT count(*)::integer AS count
  FROM horsies_workers
 WHERE state IN ('starting', 'running', 'draining') AND last_heartbeat_at > now() - $1::interval;
