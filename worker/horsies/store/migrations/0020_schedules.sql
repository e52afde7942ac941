-- Schedules: definitions with their encoded calls, one row for each slot, and the processes that take part.

ALTER TABLE horsies_schedule_state
    ADD COLUMN owner           text        NOT NULL DEFAULT '',
    ADD COLUMN source          text        NOT NULL DEFAULT 'code',
    ADD COLUMN state           text        NOT NULL DEFAULT 'active',
    ADD COLUMN definition      jsonb       NOT NULL DEFAULT '{}',
    ADD COLUMN call            jsonb       NOT NULL DEFAULT '{}',
    ADD COLUMN revision        integer     NOT NULL DEFAULT 1,
    ADD COLUMN old_hashes      text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN anchor_at       timestamptz,
    ADD COLUMN last_slot_at    timestamptz,
    ADD COLUMN waiting_slot_at timestamptz,
    ADD COLUMN tz_version      text,
    ADD COLUMN paused_at       timestamptz,
    ADD COLUMN paused_by       text,
    ADD COLUMN pause_reason    text,
    ADD COLUMN resumed_at      timestamptz,
    ADD COLUMN failures        integer     NOT NULL DEFAULT 0,
    ADD COLUMN refusals        integer     NOT NULL DEFAULT 0,
    ADD CONSTRAINT horsies_schedule_state_source CHECK (source IN ('code', 'toml', 'dynamic')),
    ADD CONSTRAINT horsies_schedule_state_state CHECK (state IN ('active', 'disabled', 'retired'));

-- A row without a definition cannot fire. An earlier version may have stored some.
UPDATE horsies_schedule_state SET state = 'retired' WHERE definition = '{}';

DROP INDEX horsies_schedule_state_next;
CREATE INDEX horsies_schedule_state_due ON horsies_schedule_state (next_run_at)
    WHERE state = 'active' AND paused_at IS NULL;
CREATE INDEX horsies_schedule_state_waiting ON horsies_schedule_state (schedule_name)
    WHERE state = 'active' AND paused_at IS NULL AND waiting_slot_at IS NOT NULL;

CREATE TABLE horsies_schedule_runs (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_name text        NOT NULL,
    slot_at       timestamptz NOT NULL,
    kind          text        NOT NULL DEFAULT 'clock',
    outcome       text        NOT NULL,
    reason        text,
    task_id       uuid,
    workflow_id   uuid,
    fired_at      timestamptz,
    fired_by      uuid,
    revision      integer     NOT NULL DEFAULT 1,
    CONSTRAINT horsies_schedule_runs_kind CHECK (kind IN ('clock', 'backfill', 'manual')),
    CONSTRAINT horsies_schedule_runs_outcome CHECK (outcome IN ('fired', 'skipped', 'refused', 'waiting'))
);

-- The first guard against firing a slot twice; the id of its task is the second.
CREATE UNIQUE INDEX horsies_schedule_runs_slot ON horsies_schedule_runs (schedule_name, slot_at) WHERE kind <> 'manual';
CREATE INDEX horsies_schedule_runs_newest ON horsies_schedule_runs (schedule_name, slot_at DESC);
CREATE INDEX horsies_schedule_runs_age ON horsies_schedule_runs USING brin (slot_at);

-- Which process defines which schedules: one that no live process defines any more is retired.
CREATE TABLE horsies_schedule_participants (
    id       uuid        PRIMARY KEY,
    owner    text        NOT NULL,
    names    text[]      NOT NULL,
    hostname text        NOT NULL,
    pid      integer     NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT now()
);

-- Wake participants when a schedule becomes due earlier than they know. Firing moves `next_run_at` forward only, so it
-- notifies no one.
CREATE FUNCTION horsies_notify_schedules() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('horsies_schedules', '');
    RETURN NULL;
END
$$;

CREATE TRIGGER horsies_schedule_added AFTER INSERT ON horsies_schedule_state
    FOR EACH STATEMENT EXECUTE FUNCTION horsies_notify_schedules();
CREATE TRIGGER horsies_schedule_changed AFTER UPDATE ON horsies_schedule_state
    FOR EACH ROW
    WHEN (NEW.next_run_at < OLD.next_run_at OR OLD.next_run_at IS NULL
          OR NEW.state IS DISTINCT FROM OLD.state OR (NEW.paused_at IS NULL AND OLD.paused_at IS NOT NULL))
    EXECUTE FUNCTION horsies_notify_schedules();

-- Retention keeps the newest 50 runs of each schedule, however old they are.
CREATE VIEW horsies_spent_schedule_runs AS
SELECT run.id, run.slot_at
  FROM horsies_schedule_runs AS run
 WHERE run.slot_at < (SELECT newest.slot_at
                        FROM horsies_schedule_runs AS newest
                       WHERE newest.schedule_name = run.schedule_name
                       ORDER BY newest.slot_at DESC
                      OFFSET 49
                       LIMIT 1);
