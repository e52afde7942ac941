-- name: notify
SELECT FROM pg_notify($1, $2);

-- name: is_notify_trigger_enabled
-- Whether the trigger that notifies workers of new tasks exists and fires in ordinary sessions.
SELECT EXISTS (SELECT
                 FROM pg_trigger
                WHERE tgrelid = 'horsies_tasks'::regclass::oid AND tgname = 'horsies_tasks_announce'
                  AND tgenabled IN ('O', 'A')) AS is_enabled;
