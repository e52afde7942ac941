-- Audit entries that retention may delete: older than 30 days and than the audit window of every live worker. A cleanup
-- with a shorter window, or with settings of its own, cannot remove the traces of recent actions.

CREATE VIEW horsies_old_audit AS
SELECT entry.id, entry.at
  FROM horsies_audit AS entry
 WHERE entry.at < pg_catalog.now() - interval '30 days'
   AND NOT EXISTS (SELECT
                     FROM horsies_workers AS worker
                    WHERE worker.state IN ('starting', 'running', 'draining')
                      AND CASE pg_catalog.jsonb_typeof(worker.health -> 'audit_retention_hours'::text)
                          WHEN 'null' THEN true  -- kept forever
                          WHEN 'number' THEN
                              entry.at >= pg_catalog.now() - pg_catalog.make_interval(secs => least(
                                  (worker.health ->> 'audit_retention_hours'::text)::double precision, 87600.0) * 3600.0)
                          ELSE false END);
