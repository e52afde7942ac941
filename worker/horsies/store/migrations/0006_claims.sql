-- What is in flight in each queue, for a claim under caps that span workers.
--
-- The locks come first and are held until the claim that asks has committed; the count is a statement of its own after
-- them, so that its snapshot has whatever the holder before us claimed. Everybody takes the cluster's lock before those
-- of queues, and these in the order of their keys: no two wait for each other.

CREATE FUNCTION horsies_lock_in_flight(cluster_is_capped boolean, capped_queues text[])
    RETURNS TABLE (queue_name text, tasks bigint)
    LANGUAGE plpgsql ROWS 10
    -- These rows are one small partial index, whatever the statistics say at this moment. A plain scan of it also marks
    -- the entries of finished tasks as dead, which a bitmap does not.
    SET enable_seqscan = off
    SET enable_bitmapscan = off
AS $$
BEGIN
    IF cluster_is_capped THEN
        PERFORM pg_advisory_xact_lock(horsies_lock_key('claim'));
    END IF;
    PERFORM pg_advisory_xact_lock(capped.key)
       FROM (SELECT horsies_lock_key('claim/' || queue) AS key FROM unnest(capped_queues) AS queue ORDER BY key) AS capped;
    RETURN QUERY
    SELECT t.queue_name, count(*)
      FROM horsies_tasks AS t
     WHERE t.status IN ('CLAIMED', 'RUNNING')
       AND (t.status = 'RUNNING' OR t.claim_expires_at IS NULL OR t.claim_expires_at > now())
     GROUP BY t.queue_name;
END
$$;
