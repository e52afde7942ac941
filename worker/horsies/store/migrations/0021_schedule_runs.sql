-- Manual runs are rare and have an index of their own; the unique index of slots also serves the reads of all others, so
-- that a slot is recorded with one index less.
DROP INDEX horsies_schedule_runs_newest;
CREATE INDEX horsies_schedule_runs_manual ON horsies_schedule_runs (schedule_name, slot_at) WHERE kind = 'manual';

CREATE OR REPLACE VIEW horsies_spent_schedule_runs AS
SELECT run.id, run.slot_at
  FROM horsies_schedule_runs AS run
 WHERE run.slot_at < (SELECT newest.slot_at
                        FROM horsies_schedule_runs AS newest
                       WHERE newest.schedule_name = run.schedule_name AND newest.kind <> 'manual'
                       ORDER BY newest.slot_at DESC
                      OFFSET 49
                       LIMIT 1);
