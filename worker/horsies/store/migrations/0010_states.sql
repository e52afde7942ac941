-- What must hold for the state of a task, in a domain instead of in constraints of the table. The server reads the
-- constraints of a table anew for each statement, those of a domain once a session: for the five of a task that was a
-- tenth of the server's time for a send. Each keeps its name, so that a refusal says which of them it was.

CREATE TYPE horsies_task_state AS (
    status      text,
    terminal_at timestamptz,
    priority    smallint,
    claimed     boolean,
    no_restart  text
);

CREATE DOMAIN horsies_sound_task_state AS horsies_task_state
    CONSTRAINT horsies_tasks_status CHECK (
        (VALUE).status IN ('PENDING', 'CLAIMED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED'))
    CONSTRAINT horsies_tasks_priority CHECK ((VALUE).priority BETWEEN 1 AND 100)
    CONSTRAINT horsies_tasks_claimed CHECK (NOT (VALUE).claimed OR (VALUE).status = 'CLAIMED')
    CONSTRAINT horsies_tasks_terminal CHECK (
        ((VALUE).terminal_at IS NOT NULL) = ((VALUE).status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')))
    CONSTRAINT horsies_tasks_no_restart CHECK ((VALUE).no_restart IN ('paused', 'cancelled'));

ALTER TABLE horsies_tasks
    DROP CONSTRAINT horsies_tasks_status,
    DROP CONSTRAINT horsies_tasks_priority,
    DROP CONSTRAINT horsies_tasks_claimed,
    DROP CONSTRAINT horsies_tasks_terminal,
    DROP CONSTRAINT horsies_tasks_no_restart,
    -- The cast is what refuses. What is asked of its outcome is true of every row, and the shortest question there is.
    ADD CONSTRAINT horsies_tasks_state CHECK (
        (ROW (status, terminal_at, priority, claimed, no_restart)::horsies_sound_task_state).status IS NOT NULL);
