-- Finding tasks whose owner fell silent, and carrying out what was decided about one.

-- A page of live tasks without a sign of life for `threshold`, or whose owner has stopped, in the order of their ids.
-- Takes no lock. Most live tasks have beaten lately, and are ruled out together; only for the others is the last beat
-- looked up. Silence before `heard_since` does not count.
CREATE FUNCTION horsies_quiet(
    in_status text, after_id uuid, threshold interval, heard_since timestamptz, owner_id uuid, with_held boolean,
    page_size integer)
    RETURNS TABLE (id uuid, last_beat_at timestamptz)
    LANGUAGE plpgsql STABLE ROWS 1000
    -- How many have beaten lately is all that the plan depends on, and a plan for any threshold cannot know it.
    SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    beats_by text := CASE in_status WHEN 'CLAIMED' THEN 'claimer' ELSE 'runner' END;
BEGIN
    RETURN QUERY
    WITH live AS MATERIALIZED (
        SELECT t.id, t.claim_token, t.claimed_by_worker_id,
               coalesce(CASE t.status WHEN 'RUNNING' THEN t.started_at END, t.claimed_at, t.enqueued_at) AS began_at
          FROM horsies_tasks AS t
         WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.status = in_status AND t.id > after_id
           AND (owner_id IS NULL OR t.claimed_by_worker_id = owner_id)
           AND (with_held OR t.recovery_hold_until IS NULL OR t.recovery_hold_until <= now())
    ), suspect AS (
        SELECT live.*, false AS is_certain
          FROM live
         WHERE NOT EXISTS (SELECT
                             FROM horsies_heartbeats AS b
                            WHERE b.sent_at > now() - least(threshold, interval '45 s') AND b.role = beats_by
                              AND b.task_id = live.id AND b.claim_token = live.claim_token)
         UNION ALL
        SELECT live.*, true
          FROM horsies_workers AS w
          JOIN live ON live.claimed_by_worker_id = w.id
         WHERE w.state = 'stopped'
    ), heard AS (
        SELECT s.id, s.is_certain, coalesce(beat.sent_at, s.began_at) AS last_at
          FROM suspect AS s
          LEFT JOIN LATERAL (
               SELECT b.sent_at
                 FROM horsies_heartbeats AS b
                WHERE b.task_id = s.id AND b.claim_token = s.claim_token AND b.role = beats_by
                ORDER BY b.sent_at DESC
                LIMIT 1) AS beat ON true
    )
    SELECT h.id, max(h.last_at)
      FROM heard AS h
     WHERE h.is_certain OR greatest(h.last_at, heard_since) <= now() - threshold
     GROUP BY h.id
     ORDER BY h.id
     LIMIT page_size;
END
$$;

-- Carries out a verdict about a task.
--
-- The lock comes first. What was judged is looked at again by a statement of its own after it, whose snapshot has
-- whatever was committed while we waited: a beat that landed before the lock saves the task, a row that moved is left
-- alone. Nothing here decides; the verdict says what the row becomes.

CREATE FUNCTION horsies_recover(
    seen_id uuid, seen_status text, seen_token bigint, seen_beat_at timestamptz, seen_no_restart text, verdict jsonb)
    RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    task horsies_tasks;
    move record;
    told integer;
BEGIN
    SELECT * INTO move
      FROM jsonb_to_record(verdict) AS said(
           status text, due_at timestamptz, retry_count integer, error_code text, document jsonb, failed_reason text,
           crash_message text, overlap_possible boolean, hold_until timestamptz, events jsonb);

    PERFORM FROM horsies_tasks AS t WHERE t.id = seen_id FOR NO KEY UPDATE;
    SELECT t.* INTO task
      FROM horsies_tasks AS t
     WHERE t.id = seen_id AND t.status = seen_status AND t.claim_token = seen_token
       AND t.no_restart IS NOT DISTINCT FROM seen_no_restart
       AND (t.recovery_hold_until IS NULL OR t.recovery_hold_until <= now())
       AND NOT EXISTS (SELECT
                         FROM horsies_heartbeats AS b
                        WHERE b.task_id = t.id AND b.claim_token = t.claim_token AND b.sent_at > seen_beat_at
                          AND b.role = CASE seen_status WHEN 'CLAIMED' THEN 'claimer' ELSE 'runner' END);
    IF NOT FOUND THEN
        RETURN false;
    END IF;

    IF move.status IS NULL THEN
        UPDATE horsies_tasks SET recovery_hold_until = move.hold_until, updated_at = now() WHERE id = seen_id;
        RETURN true;
    END IF;

    IF seen_status = 'RUNNING' THEN
        INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, will_retry, started_at, finished_at,
                                           error_code, error_message, failed_reason, worker_id, worker_hostname,
                                           worker_pid, worker_process_name)
        VALUES (task.id, task.attempts + 1, task.claim_token, 'FAILED', move.status = 'PENDING',
                coalesce(task.started_at, task.claimed_at, task.updated_at), now(), 'WORKER_CRASHED',
                move.crash_message, move.failed_reason, task.claimed_by_worker_id, task.worker_hostname,
                task.worker_pid, task.worker_process_name);
        UPDATE horsies_tasks
           SET attempts = attempts + 1, crash_count = crash_count + 1,
               overlap_possible = overlap_possible OR move.overlap_possible
         WHERE id = seen_id;
    END IF;

    IF move.status = 'PENDING' THEN
        UPDATE horsies_tasks
           SET status = 'PENDING', retry_count = move.retry_count, enqueued_at = move.due_at,
               next_retry_at = CASE WHEN seen_status = 'RUNNING' THEN move.due_at END,
               failed_reason = move.failed_reason, recovery_hold_until = NULL,
               claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
               started_at = NULL, worker_hostname = NULL, worker_pid = NULL, worker_process_name = NULL,
               kill_requested = false, updated_at = now()
         WHERE id = seen_id;
        IF move.due_at <= clock_timestamp() THEN
            PERFORM pg_notify('horsies_task_new', task.queue_name);
        END IF;
    ELSE
        UPDATE horsies_tasks
           SET status = move.status, result = move.document, error_code = move.error_code,
               failed_reason = coalesce(move.failed_reason, failed_reason), terminal_at = now(),
               failed_at = CASE WHEN move.status = 'FAILED' THEN now() END,
               claimed = false, claim_expires_at = NULL, updated_at = now()
         WHERE id = seen_id;
        INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
        SELECT task.id, task.workflow_id, task.workflow_task_index WHERE task.is_workflow_task
        ON CONFLICT DO NOTHING;
        PERFORM pg_notify('horsies_task_done', task.id::text);
    END IF;

    WITH event AS (
        INSERT INTO horsies_events (kind, task_id, workflow_id, worker_id, claim_token, queue_name, evidence)
        SELECT said.kind, task.id, task.workflow_id, task.claimed_by_worker_id, task.claim_token, task.queue_name,
               said.evidence
          FROM jsonb_to_recordset(move.events) AS said(kind text, evidence jsonb)
        RETURNING *
    )
    SELECT count(*) INTO told
      FROM event
     CROSS JOIN LATERAL pg_notify('horsies_events', json_build_object(
           'kind', event.kind, 'queue', event.queue_name, 'from', seen_status, 'to', move.status, 'count', 1,
           'ids', json_build_array(event.task_id))::text);
    RETURN true;
END
$$;
