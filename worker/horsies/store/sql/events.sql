-- name: record_event
-- Write down what an operator should be able to read, and tell those who watch.
WITH event AS (
    INSERT INTO horsies_events (kind, task_id, workflow_id, worker_id, claim_token, queue_name, evidence)
    VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb)
    RETURNING *
)
SELECT event.id
  FROM event
 CROSS JOIN LATERAL pg_notify('horsies_events', json_build_object(
       'kind', event.kind, 'queue', event.queue_name, 'from', NULL, 'to', NULL, 'count', 1,
       'ids', array_remove(ARRAY[event.task_id], NULL))::text);

-- name: notify_viewers
SELECT count(*) AS messages FROM unnest($1::text[]) AS event CROSS JOIN LATERAL pg_notify('horsies_events', event);
