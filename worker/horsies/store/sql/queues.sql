-- name: pause_queue
-- Nothing new is claimed from this queue; no row back means that it was paused already.
INSERT INTO horsies_queues AS q (queue_name, paused_at, paused_by, pause_reason, updated_at)
VALUES ($1, now(), $2, $3, now())
ON CONFLICT (queue_name) DO UPDATE
   SET paused_at = now(), paused_by = $2, pause_reason = $3, updated_at = now()
 WHERE q.paused_at IS NULL
RETURNING q.queue_name;

-- name: resume_queue
-- A queue without a row is not paused; one that nobody knows is forgotten with its pause.
DELETE FROM horsies_queues
 WHERE queue_name = $1 AND paused_at IS NOT NULL
RETURNING queue_name;

-- name: is_queue_known
-- Whether anybody serves this queue, or anything waits in it.
SELECT EXISTS (SELECT FROM horsies_workers
                WHERE state IN ('starting', 'running', 'draining') AND $1 = ANY(queues))
    OR EXISTS (SELECT FROM horsies_tasks WHERE status = 'PENDING' AND queue_name = $1) AS is_known;
