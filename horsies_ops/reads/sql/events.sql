-- name: events_after
-- The next events after $1.
SELECT id, at, kind, task_id, workflow_id, worker_id, claim_token, queue_name AS queue, evidence::text AS evidence_json
  FROM horsies_events
 WHERE id > $1
   AND ($2::text[] IS NULL OR kind = ANY ($2))
   AND ($3::uuid IS NULL OR task_id = $3)
   AND ($4::interval IS NULL OR at > now() - $4::interval)
 ORDER BY id
 LIMIT $5;

-- name: latest_events
-- The last events before $1, in id order.
SELECT *
  FROM (SELECT id, at, kind, task_id, workflow_id, worker_id, claim_token, queue_name AS queue,
               evidence::text AS evidence_json
          FROM horsies_events
         WHERE id < $1
           AND ($2::text[] IS NULL OR kind = ANY ($2))
           AND ($3::uuid IS NULL OR task_id = $3)
           AND ($4::interval IS NULL OR at > now() - $4::interval)
         ORDER BY id DESC
         LIMIT $5) AS newest
 ORDER BY id;

-- name: actions_after
SELECT id, at, actor, host, action, reason, filter::text AS filter_json, dry_run, matched, affected, skipped, via, task_ids,
       db_role, client_addr::text AS client_addr
  FROM horsies_audit
 WHERE id > $1
   AND ($2::text[] IS NULL OR action = ANY ($2))
 ORDER BY id
 LIMIT $3;

-- name: latest_actions
SELECT *
  FROM (SELECT id, at, actor, host, action, reason, filter::text AS filter_json, dry_run, matched, affected, skipped, via,
               task_ids, db_role, client_addr::text AS client_addr
          FROM horsies_audit
         WHERE id < $1
           AND ($2::text[] IS NULL OR action = ANY ($2))
         ORDER BY id DESC
         LIMIT $3) AS newest
 ORDER BY id;
