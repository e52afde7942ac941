-- name: notify
SELECT pg_notify($1::text, '') IS NULL AS said;
