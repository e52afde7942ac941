-- name: now
-- Not now(), which is when the transaction began.
SELECT clock_timestamp() AS at;
