-- name: insert_audit_entry
-- One row an action. What follows in further batches is added to it in their transactions.
INSERT INTO horsies_audit (actor, host, via, action, reason, filter, dry_run, matched, affected, skipped, task_ids)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, ($11::uuid[])[1:1000])
RETURNING id;

-- name: add_audit_progress
UPDATE horsies_audit
   SET matched = matched + $2, affected = affected + $3, skipped = skipped + $4,
       task_ids = (task_ids || $5::uuid[])[1:1000]
 WHERE id = $1
RETURNING id;
