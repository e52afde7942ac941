-- name: list
-- Stored schedules, the next one first; $1 limits it to one of them, and a slot is overdue if it is $2 seconds late.
SELECT s.schedule_name AS name, s.owner, s.source, s.state,
       coalesce(s.call ->> 'task_name'::text, s.call ->> 'workflow'::text) AS target,
       s.call ? 'plan'::text AS is_workflow, s.definition::text AS definition, s.anchor_at, s.next_run_at,
       s.next_run_at - now() AS due_in, s.last_slot_at, s.last_run_at, newest.fired_at - newest.slot_at AS lag,
       s.last_task_id, coalesce(task.status, workflow.status) AS last_status, task.error_code AS last_error_code,
       s.run_count, s.revision, s.waiting_slot_at, s.failures, s.refusals, s.paused_at, s.paused_by, s.pause_reason,
       s.state = 'active' AND s.paused_at IS NULL AND s.next_run_at < now() - make_interval(secs => $2) AS is_overdue,
       ARRAY(SELECT run.outcome
               FROM (SELECT recent.outcome, recent.slot_at
                       FROM horsies_schedule_runs AS recent
                      WHERE recent.schedule_name = s.schedule_name AND recent.kind <> 'manual'
                      ORDER BY recent.slot_at DESC
                      LIMIT 20) AS run
              ORDER BY run.slot_at) AS recent
  FROM horsies_schedule_state AS s
  LEFT JOIN LATERAL (SELECT run.fired_at, run.slot_at
                       FROM horsies_schedule_runs AS run
                      WHERE run.schedule_name = s.schedule_name AND run.outcome = 'fired' AND run.kind = 'clock'
                      ORDER BY run.slot_at DESC
                      LIMIT 1) AS newest ON true
  LEFT JOIN horsies_tasks AS task ON task.id = s.last_task_id
  LEFT JOIN horsies_workflows AS workflow ON workflow.id = s.last_task_id
 WHERE $1::text IS NULL OR s.schedule_name = $1
 ORDER BY is_overdue DESC, s.next_run_at, s.schedule_name;

-- name: history
-- Runs of a schedule, newest slot first, with the status of what they sent.
SELECT run.slot_at, run.kind, run.outcome, run.reason, run.task_id, run.workflow_id, run.fired_at,
       CASE WHEN run.kind = 'clock' THEN run.fired_at - run.slot_at END AS lag, run.fired_by, run.revision,
       coalesce(task.status, workflow.status) AS status, task.error_code
  FROM (-- one part for each of the two indexes
        (SELECT * FROM horsies_schedule_runs AS slot
          WHERE slot.schedule_name = $1 AND slot.kind <> 'manual' ORDER BY slot.slot_at DESC LIMIT $2)
         UNION ALL
        (SELECT * FROM horsies_schedule_runs AS manual
          WHERE manual.schedule_name = $1 AND manual.kind = 'manual' ORDER BY manual.slot_at DESC LIMIT $2)) AS run
  LEFT JOIN horsies_tasks AS task ON task.id = run.task_id
  LEFT JOIN horsies_workflows AS workflow ON workflow.id = run.workflow_id
 ORDER BY run.slot_at DESC, run.id DESC
 LIMIT $2;

-- name: participants
-- Processes that take part in firing schedules, with the state of those that are workers.
SELECT now() - p.seen_at AS seen_ago, w.state AS worker_state, now() - w.last_heartbeat_at AS heartbeat_age,
       coalesce(w.recovery_config, '{}')::text AS config
  FROM horsies_schedule_participants AS p
  LEFT JOIN horsies_workers AS w ON w.id = p.id;

-- name: totals
-- Slots by outcome since $1, and the lags of those that fired by the clock, in seconds.
SELECT run.outcome, count(*) AS count,
       pg_catalog.array_agg(extract(epoch FROM run.fired_at - run.slot_at)::double precision)
           FILTER (WHERE run.outcome = 'fired' AND run.kind = 'clock') AS lags
  FROM horsies_schedule_runs AS run
 WHERE run.id > $1 AND run.id <= $2
 GROUP BY run.outcome;

-- name: newest_run
SELECT coalesce(max(id), 0) AS id FROM horsies_schedule_runs;
