-- Attempts are only appended, in the order of finished_at: a block range index finds a period as well as a b-tree and
-- costs nothing per row. created_at always equals finished_at.
DROP INDEX horsies_task_attempts_finished;

CREATE INDEX horsies_task_attempts_finished ON horsies_task_attempts
 USING brin (finished_at) WITH (pages_per_range = 32, autosummarize = on);

ALTER TABLE horsies_task_attempts DROP COLUMN created_at;
