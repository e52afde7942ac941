-- Recovery changes a task with the same statements as a worker. The server only has to lock it and to check it again.

DROP FUNCTION horsies_recover(uuid, text, bigint, timestamptz, text, jsonb);

-- Lock a stale task and return its row; no row if it has changed or sent a heartbeat since it was read.
--
-- The lock comes first. The check is a second statement, whose snapshot has what was committed while we waited for the
-- lock: a heartbeat before it saves the task.
CREATE FUNCTION horsies_lock_stale(
    seen_id uuid, seen_status text, seen_token bigint, seen_beat_at timestamptz, seen_no_restart text)
    RETURNS SETOF horsies_tasks
    LANGUAGE plpgsql ROWS 1
AS $$
BEGIN
    PERFORM FROM horsies_tasks AS t WHERE t.id = seen_id FOR NO KEY UPDATE;
    RETURN QUERY
    SELECT t.*
      FROM horsies_tasks AS t
     WHERE t.id = seen_id AND t.status = seen_status AND t.claim_token = seen_token
       AND t.no_restart IS NOT DISTINCT FROM seen_no_restart
       AND (t.recovery_hold_until IS NULL OR t.recovery_hold_until <= now())
       AND NOT EXISTS (SELECT
                         FROM horsies_heartbeats AS b
                        WHERE b.task_id = t.id AND b.claim_token = t.claim_token AND b.sent_at > seen_beat_at
                          AND b.role = CASE seen_status WHEN 'CLAIMED' THEN 'claimer' ELSE 'runner' END);
END
$$;
