-- name: next_check
-- Seconds until the next slot after $1 is due, whether an earlier one is still undecided, and whether a slot waits for an
-- earlier one. Each is one read of a partial index.
SELECT clock.now, extract(epoch FROM due.next_run_at - clock.now)::double precision AS due_in_s,
       EXISTS (SELECT
                 FROM horsies_schedule_state AS s
                WHERE s.state = 'active' AND s.paused_at IS NULL AND s.next_run_at <= $1) AS has_undecided,
       EXISTS (SELECT
                 FROM horsies_schedule_state AS s
                WHERE s.state = 'active' AND s.paused_at IS NULL AND s.waiting_slot_at IS NOT NULL) AS has_waiting
  FROM (SELECT clock_timestamp() AS now) AS clock,
       (SELECT min(s.next_run_at) AS next_run_at
          FROM horsies_schedule_state AS s
         WHERE s.state = 'active' AND s.paused_at IS NULL
           AND s.next_run_at > coalesce($1::timestamptz, '-infinity')) AS due;

-- name: lock_due
-- Lock schedules with due slots, the oldest slot first; rows that another process holds are skipped. $2 limits it to
-- one schedule. The server ends the transaction of a participant that is suspended while it holds the locks.
SELECT {{ due_columns(s) }}
  FROM horsies_schedule_state AS s
 WHERE s.state = 'active' AND s.paused_at IS NULL AND s.next_run_at <= now()
   AND ($2::text IS NULL OR s.schedule_name = $2)
   AND (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) IS NOT NULL
 ORDER BY s.next_run_at
 LIMIT $1
   FOR UPDATE OF s SKIP LOCKED;

-- name: lock_waiting
-- Lock schedules whose waiting slot can fire, because the earlier one has ended.
SELECT {{ due_columns(s) }}
  FROM horsies_schedule_state AS s
 WHERE s.state = 'active' AND s.paused_at IS NULL AND s.waiting_slot_at IS NOT NULL AND s.next_run_at > now()
   AND NOT {{ schedule_is_running(s) }}
 LIMIT $1
   FOR UPDATE OF s SKIP LOCKED;

-- name: schedule_history
-- Whether an earlier slot of each locked schedule is running, and how many failed in a row. A statement of its own, because
-- the one that locked the rows may not see what the previous holder of a lock had committed meanwhile.
SELECT s.schedule_name,
       {{ schedule_is_running(s) }} AS is_running,
       {{ schedule_failures(s) }} AS failures
  FROM horsies_schedule_state AS s
 WHERE s.schedule_name = ANY($1::text[]);

-- name: record_slots
-- Record decided slots, send the tasks of those that fire and advance their schedules, whose rows the caller has locked.
-- Returns the slots that are left alone, because they fired before. The call is in the schedule's row, so that no
-- application code is needed. A decision ($5 to $16) is passed once for all schedules that share it; $1 to $4 are the
-- rows: name, number of the decision, id and start of the task. All columns but the names are texts with a value per line.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), decision AS MATERIALIZED (
    SELECT decision.*,
           pg_catalog.concat(', "slot_at": ', pg_catalog.to_json(decision.slot_at),
                  ', "previous_slot_at": ', coalesce(pg_catalog.to_json(decision.previous_slot_at)::text, 'null'),
                  ', "fired_at": ', pg_catalog.to_json(clock.now), '}}') AS context
      FROM clock,
           unnest(string_to_array($5, E'\n', '')::timestamptz[], string_to_array($6, E'\n', ''),
                  string_to_array($7, E'\n', ''), string_to_array($8, E'\n', '')::timestamptz[],
                  string_to_array($9, E'\n', '')::timestamptz[], string_to_array($10, E'\n', '')::boolean[],
                  string_to_array($11, E'\n', '')::timestamptz[], string_to_array($12, E'\n', '')::timestamptz[],
                  string_to_array($13, E'\n', '')::timestamptz[], string_to_array($14, E'\n', '')::integer[],
                  string_to_array($15, E'\n', '')::integer[], string_to_array($16, E'\n', '')::integer[])
           WITH ORDINALITY
           AS decision(slot_at, outcome, reason, previous_slot_at, good_until, is_last, next_run_at, waiting_slot_at,
                       fired_slot_at, fired_count, refused_count, failures, number)
), input AS MATERIALIZED (
    SELECT row.schedule_name, row.fired_id, row.start_at, decision.*, s.ctid AS state_ctid, s.call, s.revision,
           s.call ? 'plan'::text AS is_workflow
      FROM unnest($1::text[], string_to_array($2, E'\n')::bigint[], string_to_array($3, E'\n', '')::uuid[],
                  string_to_array($4, E'\n', '')::timestamptz[]) AS row(schedule_name, number, fired_id, start_at)
      JOIN decision ON decision.number = row.number
      JOIN horsies_schedule_state AS s ON s.schedule_name = row.schedule_name
), recorded AS (
    INSERT INTO horsies_schedule_runs AS run (schedule_name, slot_at, kind, outcome, reason, task_id, workflow_id,
                                              fired_at, fired_by, revision)
    SELECT input.schedule_name, input.slot_at, $17, input.outcome, input.reason,
           CASE WHEN NOT input.is_workflow THEN input.fired_id END,
           CASE WHEN input.is_workflow THEN input.fired_id END,
           CASE WHEN input.outcome = 'fired' THEN clock.now END, $18, input.revision
      FROM clock, input
     WHERE input.outcome IS NOT NULL
     ORDER BY input.schedule_name, input.slot_at
    ON CONFLICT (schedule_name, slot_at) WHERE kind <> 'manual'
    DO UPDATE SET kind = EXCLUDED.kind, outcome = EXCLUDED.outcome, reason = EXCLUDED.reason,
                  task_id = EXCLUDED.task_id, workflow_id = EXCLUDED.workflow_id, fired_at = EXCLUDED.fired_at,
                  fired_by = EXCLUDED.fired_by, revision = EXCLUDED.revision
     WHERE run.outcome <> 'fired' AND EXCLUDED.outcome IN ('fired', 'refused')
    RETURNING run.schedule_name, run.slot_at, run.task_id
), sent AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, context, sent_at, enqueued_at,
                               good_until, max_retries, task_options, flags, enqueue_sha)
    SELECT recorded.task_id, input.call ->> 'task_name'::text, input.call ->> 'queue_name'::text,
           (input.call ->> 'priority'::text)::smallint, input.call -> 'args'::text, input.call -> 'kwargs'::text,
           pg_catalog.concat('{"schedule": {"name": ', pg_catalog.to_json(input.schedule_name), input.context)::jsonb,
           input.slot_at, coalesce(input.start_at, clock.now), input.good_until,
           (input.call ->> 'max_retries'::text)::integer, input.call -> 'task_options'::text,
           input.call -> 'flags'::text, recorded.task_id::text -- fingerprint: the id is a hash of name and slot
      FROM clock, recorded
      JOIN input ON input.fired_id = recorded.task_id
    ON CONFLICT (id) DO NOTHING
), advanced AS (
    -- The rows are locked, so they are where `input` has found them.
    UPDATE horsies_schedule_state AS s
       SET next_run_at = input.next_run_at, waiting_slot_at = input.waiting_slot_at,
           last_slot_at = coalesce(input.fired_slot_at, s.last_slot_at),
           last_run_at = CASE WHEN input.fired_count > 0 THEN now() ELSE s.last_run_at END,
           last_task_id = coalesce(input.fired_id, s.last_task_id), run_count = s.run_count + input.fired_count,
           refusals = CASE WHEN input.fired_count > 0 THEN 0 ELSE s.refusals + input.refused_count END,
           failures = input.failures, tz_version = $19, updated_at = now()
      FROM input
     WHERE input.is_last AND s.ctid = input.state_ctid AND s.schedule_name = input.schedule_name
)
SELECT input.schedule_name, input.slot_at
  FROM input
 WHERE input.outcome IS NOT NULL
   AND NOT EXISTS (SELECT
                     FROM recorded
                    WHERE recorded.schedule_name = input.schedule_name AND recorded.slot_at = input.slot_at);

-- name: add_fired_slots
-- Correct how many slots of schedules fired; the caller has locked their rows.
UPDATE horsies_schedule_state AS s
   SET run_count = s.run_count + input.count
  FROM unnest($1::text[], $2::integer[]) AS input(schedule_name, count)
 WHERE s.schedule_name = input.schedule_name;

-- name: unfinished_of
-- Tasks and runs of a schedule that have not ended, for the overlap policy `replace`.
SELECT run.task_id, run.workflow_id, task.status, task.claim_token
  FROM horsies_schedule_runs AS run
  LEFT JOIN horsies_tasks AS task ON task.id = run.task_id
  LEFT JOIN horsies_workflows AS workflow ON workflow.id = run.workflow_id
 WHERE run.schedule_name = $1 AND run.outcome = 'fired' AND run.kind <> 'manual'
   AND (task.status IN ('PENDING', 'CLAIMED', 'RUNNING') OR workflow.status IN ('PENDING', 'RUNNING', 'PAUSED'))
 ORDER BY run.slot_at DESC
 LIMIT 20;

-- name: pause
-- Returns no row if the schedule does not exist or is paused.
UPDATE horsies_schedule_state
   SET paused_at = now(), paused_by = $2, pause_reason = $3, updated_at = now()
 WHERE schedule_name = $1 AND paused_at IS NULL
RETURNING schedule_name;

-- name: resume
-- With `$2` it continues there, and a slot that waited is skipped. Without, it catches up from where it was paused. The
-- caller has locked the row.
WITH before AS (
    SELECT schedule_name, waiting_slot_at
      FROM horsies_schedule_state
     WHERE schedule_name = $1 AND paused_at IS NOT NULL AND $2::timestamptz IS NOT NULL
), skipped AS (
    {{ skip_waiting(before, the schedule was paused) }}
)
UPDATE horsies_schedule_state
   SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, resumed_at = now(), failures = 0,
       next_run_at = greatest(next_run_at, $2), updated_at = now(),
       waiting_slot_at = CASE WHEN $2 IS NULL THEN waiting_slot_at END
 WHERE schedule_name = $1 AND paused_at IS NOT NULL
RETURNING schedule_name;

-- name: lock_schedule
-- With whether a live participant defines it.
SELECT s.schedule_name, s.owner, s.source, s.state, s.definition::text AS definition, s.call ->> 'plan'::text AS plan,
       s.next_run_at, s.anchor_at, s.paused_at, s.revision, clock_timestamp() AS now,
       {{ is_defined(s, $2) }} AS is_defined
  FROM horsies_schedule_state AS s
 WHERE s.schedule_name = $1
   FOR UPDATE;

-- name: slot_outcomes
-- What is recorded about the slots of a range.
SELECT slot_at, outcome
  FROM horsies_schedule_runs
 WHERE schedule_name = $1 AND kind <> 'manual' AND slot_at BETWEEN $2 AND $3;

-- name: forget
WITH runs AS (DELETE FROM horsies_schedule_runs WHERE schedule_name = $1)
DELETE FROM horsies_schedule_state WHERE schedule_name = $1 RETURNING schedule_name;

-- name: try_sync_lock
SELECT pg_try_advisory_xact_lock(horsies_lock_key($1)) AS is_acquired;

-- name: stored_schedules
-- Schedules with these names, whatever their owner. Locked in name order.
SELECT schedule_name, owner, source, state, definition::text AS definition, config_hash, old_hashes, revision,
       next_run_at, anchor_at, tz_version
  FROM horsies_schedule_state
 WHERE schedule_name = ANY($1::text[])
 ORDER BY schedule_name
   FOR UPDATE;

-- name: database_time
SELECT clock_timestamp() AS now;

-- name: upsert
-- Store definitions. The caller has locked the rows in $12; one that another transaction has inserted meanwhile stays, and
-- only the names of those stored are returned. A superseded hash is remembered; one that is in use again is not
-- superseded any more. A schedule that is restarted or stopped skips its waiting slot.
WITH input AS (
    SELECT *
      FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::integer[],
                  $10::timestamptz[], $11::timestamptz[])
           AS input(schedule_name, source, state, definition, call, config_hash, revision, next_run_at, anchor_at)
), restarted AS (
    SELECT s.schedule_name, s.waiting_slot_at
      FROM input
      JOIN horsies_schedule_state AS s ON s.schedule_name = input.schedule_name
     WHERE s.waiting_slot_at IS NOT NULL
       AND (input.state <> 'active' OR input.anchor_at IS DISTINCT FROM s.anchor_at)
), skipped AS (
    {{ skip_waiting(restarted, the definition has changed) }}
)
INSERT INTO horsies_schedule_state AS s (schedule_name, owner, source, state, definition, call, config_hash, revision,
                                         next_run_at, anchor_at, tz_version)
SELECT input.schedule_name, $1, input.source, input.state, input.definition::jsonb, input.call::jsonb,
       input.config_hash, input.revision, input.next_run_at, input.anchor_at, $2
  FROM input
ON CONFLICT (schedule_name) DO UPDATE
   SET owner = EXCLUDED.owner, source = EXCLUDED.source, state = EXCLUDED.state, definition = EXCLUDED.definition,
       call = EXCLUDED.call, config_hash = EXCLUDED.config_hash, revision = EXCLUDED.revision, next_run_at = EXCLUDED.next_run_at,
       anchor_at = EXCLUDED.anchor_at, tz_version = EXCLUDED.tz_version, updated_at = now(),
       waiting_slot_at = CASE WHEN EXCLUDED.state = 'active' AND EXCLUDED.anchor_at IS NOT DISTINCT FROM s.anchor_at
                              THEN s.waiting_slot_at
                          END,
       old_hashes = CASE WHEN s.config_hash = EXCLUDED.config_hash THEN s.old_hashes
                         ELSE pg_catalog.array_remove(pg_catalog.array_append(s.old_hashes, s.config_hash),
                                                      EXCLUDED.config_hash)
                     END
 WHERE s.schedule_name = ANY($12::text[])
RETURNING s.schedule_name;

-- name: join
-- Register a participant, or renew it; forget those that have been silent for an hour.
WITH gone AS (
    DELETE FROM horsies_schedule_participants WHERE seen_at < now() - interval '1 hour' AND id <> $1
)
INSERT INTO horsies_schedule_participants (id, owner, names, hostname, pid)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), names = EXCLUDED.names;

-- name: leave
DELETE FROM horsies_schedule_participants WHERE id = $1;

-- name: retire
-- Retire schedules of an owner that no live participant defines any more.
WITH undefined AS (
    SELECT s.schedule_name, s.waiting_slot_at
      FROM horsies_schedule_state AS s
     WHERE s.owner = $1 AND s.source <> 'dynamic' AND s.state <> 'retired'
       AND NOT {{ is_defined(s, $2) }}
     ORDER BY s.schedule_name
       FOR UPDATE
), skipped AS (
    {{ skip_waiting(undefined, its app does not define the schedule any more) }}
)
UPDATE horsies_schedule_state AS s
   SET state = 'retired', waiting_slot_at = NULL, updated_at = now()
  FROM undefined
 WHERE s.schedule_name = undefined.schedule_name
RETURNING s.schedule_name;

-- name: info
SELECT schedule_name AS name, owner, source, state, definition::text AS definition,
       coalesce(call ->> 'task_name'::text, call ->> 'workflow'::text) AS target, next_run_at, last_run_at,
       last_slot_at, run_count, paused_at, paused_by, pause_reason, revision
  FROM horsies_schedule_state
 WHERE schedule_name = $1;
