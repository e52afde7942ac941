-- name: claim
-- Take the best tasks that are due: the first ones straight to RUNNING, one for each given child, the rest CLAIMED.
--
-- In each queue it goes from one priority present to the next along the claim index, and in each as far as rows are due
-- and wanted, so that neither the backlog is sorted nor work of tomorrow looked at. A lapsed lease is taken as well, but
-- not started in the same breath, nor is a node of a workflow that another hand holds: everybody else locks the node
-- before the task, so the node is not waited for here. The node's status is asked for in a way that no index serves:
-- that of its run would be multiplied with the batch where the statistics are old.
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::integer[], $3::integer[]) AS asked(queue_name, room, cap)
), in_flight AS MATERIALIZED (
    SELECT queue_name, tasks
      FROM horsies_lock_in_flight($5::integer IS NOT NULL, ARRAY(SELECT queue_name FROM asked WHERE cap IS NOT NULL))
     -- Without a cap it is not called at all: nothing is locked, nothing counted.
     WHERE $5 IS NOT NULL OR num_nonnulls(VARIADIC $3) > 0
), budget AS (
    SELECT greatest(0, least($4::integer, $5 - (SELECT coalesce(sum(tasks), 0) FROM in_flight)))::integer AS tasks
), served AS MATERIALIZED (
    SELECT asked.queue_name,
           greatest(0, least(budget.tasks, asked.room, asked.cap - coalesce(in_flight.tasks, 0)))::integer AS room
      FROM budget
     CROSS JOIN asked
      LEFT JOIN in_flight USING (queue_name)
     WHERE NOT EXISTS (SELECT
                         FROM horsies_queues AS q
                        WHERE q.queue_name = asked.queue_name AND q.paused_at IS NOT NULL)
), eligible AS (
    SELECT served.queue_name, served.room, found.*
      FROM served
     CROSS JOIN LATERAL (
           WITH RECURSIVE level(priority) AS (
               (SELECT t.priority
                  FROM horsies_tasks AS t
                 WHERE t.status = 'PENDING' AND t.queue_name = served.queue_name
                 ORDER BY t.priority
                 LIMIT 1)
               UNION ALL
               SELECT (SELECT t.priority
                         FROM horsies_tasks AS t
                        WHERE t.status = 'PENDING' AND t.queue_name = served.queue_name AND t.priority > level.priority
                        ORDER BY t.priority
                        LIMIT 1)
                 FROM level
                WHERE level.priority IS NOT NULL
           )
           SELECT due.*
             FROM level
            CROSS JOIN LATERAL (
                  SELECT t.id, t.priority, t.enqueued_at, true AS may_start, t.is_workflow_task
                    FROM horsies_tasks AS t
                   WHERE t.status = 'PENDING' AND t.queue_name = served.queue_name AND t.priority = level.priority
                     AND t.enqueued_at <= now()
                     AND (t.next_retry_at IS NULL OR t.next_retry_at <= now())
                     AND (t.good_until IS NULL OR t.good_until > now())
                   ORDER BY t.enqueued_at, t.id
                   LIMIT served.room
                     FOR UPDATE SKIP LOCKED) AS due
            -- Ends the walk, and with it the locking of rows, as soon as the queue has given enough.
            LIMIT served.room) AS found
     UNION ALL
    SELECT served.queue_name, served.room, lapsed.*
      FROM served
     CROSS JOIN LATERAL (
           SELECT t.id, t.priority, t.enqueued_at, false AS may_start, t.is_workflow_task
             FROM horsies_tasks AS t
            WHERE t.status = 'CLAIMED' AND t.queue_name = served.queue_name AND t.claim_expires_at <= now()
              AND (t.good_until IS NULL OR t.good_until > now())
            ORDER BY t.priority, t.enqueued_at, t.id
            LIMIT served.room
              FOR UPDATE SKIP LOCKED) AS lapsed
), within_room AS (
    SELECT *, row_number() OVER (PARTITION BY queue_name ORDER BY priority, enqueued_at, id) AS place_in_queue
      FROM eligible
), chosen AS (
    SELECT id, may_start, is_workflow_task, row_number() OVER (ORDER BY priority, enqueued_at, id) AS place
      FROM within_room
     WHERE place_in_queue <= room
     ORDER BY place
     LIMIT (SELECT tasks FROM budget)
), nodes AS MATERIALIZED (
    SELECT n.id, n.task_id
      FROM unnest(ARRAY(SELECT id FROM chosen WHERE is_workflow_task)) AS wanted(id)
      JOIN horsies_workflow_tasks AS n ON n.task_id = wanted.id AND n.status || '' IN ('ENQUEUED', 'RUNNING')
       FOR NO KEY UPDATE OF n SKIP LOCKED
), placed AS MATERIALIZED (
    SELECT id, place, is_workflow_task,
           CASE WHEN may_start AND (NOT is_workflow_task OR id IN (SELECT task_id FROM nodes))
                THEN ($9::integer[])[place] END AS pid
      FROM chosen
), running_nodes AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = 'RUNNING', started_at = now()
      FROM unnest(ARRAY(SELECT id FROM placed WHERE is_workflow_task AND pid IS NOT NULL)) AS started(id)
     WHERE n.task_id = started.id AND n.status || '' = 'ENQUEUED'
)
UPDATE horsies_tasks AS t
   SET status = CASE WHEN taken.pid IS NULL THEN 'CLAIMED' ELSE 'RUNNING' END,
       claimed = taken.pid IS NULL,
       claim_expires_at = CASE WHEN taken.pid IS NULL THEN now() + make_interval(secs => $6) END,
       started_at = CASE WHEN taken.pid IS NOT NULL THEN now() END,
       worker_pid = taken.pid,
       worker_process_name = 'worker-' || taken.pid,
       worker_hostname = CASE WHEN taken.pid IS NOT NULL THEN $8 END,
       claim_token = t.claim_token + 1, claimed_by_worker_id = $7, claimed_at = now(),
       next_retry_at = NULL, recovery_hold_until = NULL, updated_at = now()
  -- Arrays of unknown length: whatever the statistics say, each row is looked up by its key.
  FROM unnest(ARRAY(SELECT id FROM placed ORDER BY place), ARRAY(SELECT pid FROM placed ORDER BY place))
       WITH ORDINALITY AS taken(id, pid, place)
 WHERE t.id = taken.id
RETURNING taken.place, t.id, t.claim_token, t.status, t.task_name, t.queue_name, t.args::text AS args,
          t.kwargs::text AS kwargs, t.context::text AS context, t.task_options::text AS task_options,
          t.flags::text AS flags, t.retry_count, t.max_retries, t.attempts, t.crash_count, t.sent_at, t.good_until,
          t.overlap_possible, t.is_workflow_task, t.worker_pid;

-- name: start
-- Begin claimed tasks, each in the child whose pid is given. What does not come back has expired, lapsed or been lost.
-- Here and below the status is asked for in a way that no index serves: the index of owners would be multiplied with the
-- batch. The arrays have an unknown length to the planner, so that each row is looked up by its key.
WITH asked AS (
    SELECT *
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::integer[]))
           AS asked(id, claim_token, worker_id, pid)
), nodes AS MATERIALIZED (
    -- Before the tasks, as everybody who moves a workflow does.
    SELECT n.id
      FROM asked
      JOIN horsies_workflow_tasks AS n ON n.task_id = asked.id AND n.status || '' = 'ENQUEUED'
     ORDER BY n.id
       FOR NO KEY UPDATE OF n
), held AS (
    SELECT t.id, asked.pid
      FROM asked
      JOIN horsies_tasks AS t ON t.id = asked.id AND t.claim_token = asked.claim_token
                             AND t.claimed_by_worker_id = asked.worker_id AND t.status || '' = 'CLAIMED'
     WHERE (t.claim_expires_at IS NULL OR t.claim_expires_at > now())
       AND (t.good_until IS NULL OR t.good_until > now())
       AND (SELECT count(*) FROM nodes) >= 0
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), started AS (
    UPDATE horsies_tasks AS t
       SET status = 'RUNNING', claimed = false, claim_expires_at = NULL, started_at = now(), worker_hostname = $5,
           worker_pid = held.pid, worker_process_name = 'worker-' || held.pid, updated_at = now()
      FROM held
     WHERE t.id = held.id
    RETURNING t.id, t.claim_token
), running_nodes AS (
    UPDATE horsies_workflow_tasks AS n
       SET status = 'RUNNING', started_at = now()
      FROM started
     WHERE n.task_id = started.id AND n.status || '' = 'ENQUEUED'
)
SELECT id, claim_token FROM started;

-- name: expire
-- End claimed tasks that are past their good_until, with the result given for each.
WITH held AS (
    SELECT t.id, asked.document
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[]), (SELECT $4::text[]))
           AS asked(id, claim_token, worker_id, document)
      JOIN horsies_tasks AS t ON t.id = asked.id AND t.claim_token = asked.claim_token
                             AND t.claimed_by_worker_id = asked.worker_id AND t.status || '' = 'CLAIMED'
     WHERE t.good_until <= now()
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), ended AS (
    UPDATE horsies_tasks AS t
       SET status = 'EXPIRED', claimed = false, claim_expires_at = NULL, result = held.document::jsonb,
           error_code = 'TASK_EXPIRED', terminal_at = now(), updated_at = now()
      FROM held
     WHERE t.id = held.id
    RETURNING t.id, t.claim_token, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), advance AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM ended WHERE is_workflow_task
    ON CONFLICT DO NOTHING
), said AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT string_agg(id::text, ',') AS ids
              FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part FROM ended) AS numbered
             GROUP BY part) AS message
     CROSS JOIN LATERAL pg_notify('horsies_task_done', message.ids)
)
SELECT id, claim_token FROM ended WHERE (SELECT messages FROM said) >= 0;

-- name: release
-- Give up tasks that never began: no attempt, nothing counted, and the place in the queue is kept. One whose workflow
-- was paused or cancelled meanwhile is not put back but cancelled.
WITH held AS (
    SELECT t.id
      FROM unnest((SELECT $1::uuid[]), (SELECT $2::bigint[]), (SELECT $3::uuid[])) AS asked(id, claim_token, worker_id)
      JOIN horsies_tasks AS t ON t.id = asked.id AND t.claim_token = asked.claim_token
                             AND t.claimed_by_worker_id = asked.worker_id AND t.status || '' = $4
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), moved AS (
    UPDATE horsies_tasks AS t
       SET status = CASE WHEN t.no_restart IS NULL THEN 'PENDING' ELSE 'CANCELLED' END,
           result = $5::text::jsonb -> t.no_restart,
           error_code = CASE WHEN t.no_restart IS NOT NULL THEN 'TASK_CANCELLED' END,
           terminal_at = CASE WHEN t.no_restart IS NOT NULL THEN now() END,
           claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL, started_at = NULL,
           worker_hostname = NULL, worker_pid = NULL, worker_process_name = NULL, kill_requested = false,
           updated_at = now()
      FROM held
     WHERE t.id = held.id
    RETURNING t.id, t.claim_token, t.status, t.queue_name, t.is_workflow_task, t.workflow_id, t.workflow_task_index
), advance AS (
    INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
    SELECT id, workflow_id, workflow_task_index FROM moved WHERE is_workflow_task AND status = 'CANCELLED'
    ON CONFLICT DO NOTHING
), said AS MATERIALIZED (
    SELECT count(*) AS messages
      FROM (SELECT DISTINCT 'horsies_task_new', queue_name FROM moved WHERE status = 'PENDING'
             UNION ALL
            SELECT 'horsies_task_done', string_agg(id::text, ',')
              FROM (SELECT id, (row_number() OVER () - 1) / 200 AS part
                      FROM moved
                     WHERE status = 'CANCELLED') AS numbered
             GROUP BY part) AS message(channel, payload)
     CROSS JOIN LATERAL pg_notify(message.channel, message.payload)
)
SELECT id, claim_token, status FROM moved WHERE (SELECT messages FROM said) >= 0;

-- name: owned
SELECT id, claim_token, status
  FROM horsies_tasks
 WHERE claimed_by_worker_id = $1 AND status IN ('CLAIMED', 'RUNNING');
