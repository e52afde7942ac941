-- The tasks that workers have registered. Workers with the same tasks share the rows: `catalog_hash` is the hash of all of
-- them. Workers of older versions have no hash and may know any task.
CREATE TABLE horsies_task_catalog (
    catalog_hash  text        NOT NULL,
    task_name     text        NOT NULL,
    queue_name    text        NOT NULL,
    priority      smallint,
    max_retries   integer     NOT NULL,
    options       jsonb       NOT NULL DEFAULT '{}',
    params_schema jsonb       NOT NULL DEFAULT '{}',
    seen_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (catalog_hash, task_name)
);

ALTER TABLE horsies_workers ADD COLUMN catalog_hash text;
