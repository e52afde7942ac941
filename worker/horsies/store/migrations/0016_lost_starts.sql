-- How often a child died with the task before the task began. The first two times cost no retry.
ALTER TABLE horsies_tasks ADD COLUMN lost_starts smallint NOT NULL DEFAULT 0;
