-- name: task_heartbeats
-- Write a sign of life for each task that is still held, renew the lease of claims that have one, and tell of every task
-- asked for how it stands. A lapsed lease is not renewed: others may count on it.
WITH asked AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::integer[]))
           AS asked(id, claim_token, worker_id, pid)
), seen AS MATERIALIZED (
    SELECT asked.*, t.status, t.claim_token AS current_token, t.kill_requested, t.error_code,
           t.claim_token = asked.claim_token AND t.claimed_by_worker_id = asked.worker_id
               AND t.status = CASE WHEN $5 = 'claimer' THEN 'CLAIMED' ELSE 'RUNNING' END AS is_held
      FROM asked
      LEFT JOIN horsies_tasks AS t ON t.id = asked.id
), beats AS (
    INSERT INTO horsies_heartbeats (task_id, claim_token, role, sender_id, pid, hostname)
    SELECT id, claim_token, $5, CASE WHEN $5 = 'claimer' THEN worker_id::text ELSE worker_id || ':' || pid END, pid, $6
      FROM seen
     WHERE is_held
), leased AS (
    SELECT t.id
      FROM seen
      JOIN horsies_tasks AS t ON t.id = seen.id AND t.claim_token = seen.claim_token AND t.status || '' = 'CLAIMED'
     WHERE $7::double precision IS NOT NULL AND seen.is_held
       AND t.claim_expires_at > now() AND t.claimed_at > now() - make_interval(secs => $8)
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), renewed AS (
    UPDATE horsies_tasks AS t
       SET claim_expires_at = now() + make_interval(secs => $7), updated_at = now()
      FROM leased
     WHERE t.id = leased.id
), said AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT json_build_object('kind', 'heartbeats', 'worker_id', worker_id, 'count', count(*))::text
              FROM seen
             WHERE is_held AND $5 = 'runner'
             GROUP BY worker_id
             UNION ALL
            SELECT event FROM unnest($9::text[]) AS event) AS message(payload)
     CROSS JOIN LATERAL pg_notify('horsies_events', message.payload)
)
SELECT id, claim_token, coalesce(is_held, false) AS is_held, status, current_token,
       coalesce(kill_requested, false) AS kill_requested, error_code
  FROM seen
 WHERE (SELECT messages FROM said) >= 0;
