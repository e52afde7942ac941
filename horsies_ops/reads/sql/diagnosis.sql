-- name: orphans
-- Claimed and running tasks whose owner is not there any more.
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
-- The age of the oldest row that retention may take, in each category of which there is one.
SELECT category, now() - ended_at AS age
  FROM (VALUES ('heartbeats', (SELECT sent_at FROM horsies_spent_heartbeats ORDER BY sent_at LIMIT 1)),
               ('worker_states', (SELECT snapshot_at FROM horsies_worker_states ORDER BY snapshot_at LIMIT 1)),
               ('workers', (SELECT min(ended_at) FROM horsies_ended_workers)),
               ('workflows', (SELECT completed_at FROM horsies_ended_trees ORDER BY completed_at LIMIT 1)),
               ('tasks', (SELECT terminal_at FROM horsies_ended_tasks ORDER BY terminal_at LIMIT 1)),
               ('events', (SELECT at FROM horsies_events ORDER BY at LIMIT 1)),
               ('audit', (SELECT at FROM horsies_audit ORDER BY at LIMIT 1))) AS kept(category, ended_at)
 WHERE ended_at IS NOT NULL;

-- name: search_path
-- What a session has before anybody sets it.
SELECT reset_val AS search_path FROM pg_settings WHERE name = 'search_path';
