-- name: send_probe
SELECT pg_notify($1::text, '') IS NULL AS said;

-- name: is_notify_trigger_enabled
-- Whether new work is announced: the trigger is there, and fires in an ordinary session.
SELECT EXISTS (SELECT
                 FROM pg_trigger
                WHERE tgrelid = 'horsies_tasks'::regclass AND tgname = 'horsies_tasks_announce'
                  AND tgenabled IN ('O', 'A')) AS is_announced;
