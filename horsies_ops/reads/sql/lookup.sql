-- name: tasks_by_short_id
-- Tasks whose id ends in $1, among those not yet ended and the newest $2 of all. One branch a partial index, so that
-- ended tasks are never gone through to find the others.
SELECT near.id, near.name, near.status
  FROM ((SELECT id, task_name AS name, status FROM horsies_tasks
          WHERE status = 'PENDING' AND right(id::text, 8) = $1)
        UNION
        (SELECT id, task_name, status FROM horsies_tasks
          WHERE status IN ('CLAIMED', 'RUNNING') AND right(id::text, 8) = $1)
        UNION
        (SELECT id, task_name, status
           FROM (SELECT id, task_name, status FROM horsies_tasks ORDER BY id DESC LIMIT $2) AS newest
          WHERE right(id::text, 8) = $1)) AS near
 ORDER BY near.id DESC
 LIMIT $3;

-- name: runs_by_short_id
-- The same for runs of workflows.
SELECT near.id, near.name, near.status
  FROM ((SELECT id, name, status FROM horsies_workflows
          WHERE status IN ('PENDING', 'RUNNING', 'PAUSED') AND right(id::text, 8) = $1)
        UNION
        (SELECT id, name, status
           FROM (SELECT id, name, status FROM horsies_workflows ORDER BY id DESC LIMIT $2) AS newest
          WHERE right(id::text, 8) = $1)) AS near
 ORDER BY near.id DESC
 LIMIT $3;
