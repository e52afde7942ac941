-- Workers are notified of tasks that become due soon, too: they ask for the next due time and start such a task then,
-- instead of at their next poll. Other delayed tasks stay silent.
CREATE OR REPLACE FUNCTION horsies_announce_new_tasks() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('horsies_task_new', due.queue_name)
       FROM (SELECT DISTINCT pg_catalog.left(added.queue_name, 255) AS queue_name
               FROM added
              WHERE added.status = 'PENDING'
                AND added.enqueued_at <= pg_catalog.clock_timestamp() + interval '1 minute') AS due;
    RETURN NULL;
END
$$;
