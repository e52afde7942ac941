-- New work is announced once a statement and queue. Every other message is sent by the statement that causes it, and a
-- statement that announces new work itself switches the trigger off for its own transaction.

CREATE FUNCTION horsies_announce_new_tasks() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    -- Delayed work stays silent: a worker finds it at its due time or at its next poll.
    PERFORM pg_notify('horsies_task_new', due.queue_name)
       FROM (SELECT DISTINCT added.queue_name
               FROM added
              WHERE added.status = 'PENDING' AND added.enqueued_at <= clock_timestamp()) AS due;
    RETURN NULL;
END
$$;

CREATE TRIGGER horsies_tasks_announce
    AFTER INSERT ON horsies_tasks
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT
    WHEN (current_setting('horsies.announce', true) IS DISTINCT FROM 'off')
    EXECUTE FUNCTION horsies_announce_new_tasks();

-- The key of an advisory lock: the same purpose in two schemas of one database must not collide.
CREATE FUNCTION horsies_lock_key(purpose text) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT hashtextextended(current_schema() || '/' || purpose, 0) $$;
