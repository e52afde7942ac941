-- What retention may take, apart from its age. Counting, locking and deleting all read these views, so that what a dry
-- run shows and what a pass takes cannot differ.

-- The newest beat of a live claim or run is what it is judged by, however old it is.
CREATE VIEW horsies_spent_heartbeats AS
SELECT beat.id, beat.sent_at
  FROM horsies_heartbeats AS beat
 WHERE NOT EXISTS (
       SELECT
         FROM horsies_tasks AS task
        WHERE task.id = beat.task_id AND task.claim_token = beat.claim_token AND task.status IN ('CLAIMED', 'RUNNING')
          -- Its own token is the smallest that is not smaller. Asked in the order of the index that has it, for the
          -- planner would else look for it among the newest beats of all tasks.
          AND beat.sent_at = (SELECT newest.sent_at
                                FROM horsies_heartbeats AS newest
                               WHERE newest.task_id = beat.task_id AND newest.role = beat.role
                                 AND newest.claim_token >= beat.claim_token
                               ORDER BY newest.claim_token, newest.sent_at DESC
                               LIMIT 1));

-- A run of a worker that is over; one that still owns work is evidence for the verdict on it.
CREATE VIEW horsies_ended_workers AS
SELECT worker.id, greatest(worker.last_heartbeat_at, worker.stopped_at, worker.lost_at) AS ended_at
  FROM horsies_workers AS worker
 WHERE worker.state IN ('stopped', 'lost')
   AND NOT EXISTS (SELECT
                     FROM horsies_tasks AS task
                    WHERE task.claimed_by_worker_id = worker.id AND task.status IN ('CLAIMED', 'RUNNING'));

-- A task that no run of a workflow can read: it belongs to none, or to one that is gone.
CREATE VIEW horsies_ended_tasks AS
SELECT task.id, task.terminal_at
  FROM horsies_tasks AS task
 WHERE task.terminal_at IS NOT NULL
   AND (task.workflow_id IS NULL
        OR NOT EXISTS (SELECT FROM horsies_workflows AS run WHERE run.id = task.workflow_id));

-- A root whose whole tree is over: itself, every run below it, and every task of theirs.
CREATE VIEW horsies_ended_trees AS
SELECT root.id, root.completed_at
  FROM horsies_workflows AS root
 WHERE root.parent_workflow_id IS NULL
   AND root.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
   AND NOT EXISTS (SELECT
                     FROM horsies_workflows AS run
                    WHERE run.root_workflow_id = root.id AND run.status IN ('PENDING', 'RUNNING', 'PAUSED'))
   AND NOT EXISTS (SELECT
                     FROM horsies_workflows AS run
                     JOIN horsies_tasks AS task ON task.workflow_id = run.id
                    WHERE run.root_workflow_id = root.id AND task.terminal_at IS NULL);
