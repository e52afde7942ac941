-- Tasks, their attempts and their heartbeats.
--
-- A task row is rewritten at every move, so fixed-width columns that are always set come first: a packed row is a smaller
-- row version and less WAL. Every index is partial unless it serves each row, because an index is paid for at every move.

CREATE TABLE horsies_tasks (
    id                   uuid        PRIMARY KEY,
    sent_at              timestamptz NOT NULL,
    enqueued_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),
    claim_token          bigint      NOT NULL DEFAULT 0,
    retry_count          integer     NOT NULL DEFAULT 0,
    max_retries          integer     NOT NULL DEFAULT 0,
    attempts             integer     NOT NULL DEFAULT 0,
    crash_count          integer     NOT NULL DEFAULT 0,
    priority             smallint    NOT NULL DEFAULT 100,
    claimed              boolean     NOT NULL DEFAULT false,
    is_workflow_task     boolean     NOT NULL DEFAULT false,
    overlap_possible     boolean     NOT NULL DEFAULT false,
    kill_requested       boolean     NOT NULL DEFAULT false,

    status               text        NOT NULL DEFAULT 'PENDING',
    task_name            text        NOT NULL,
    queue_name           text        NOT NULL DEFAULT 'default',
    enqueue_sha          text        NOT NULL,
    args                 jsonb       NOT NULL DEFAULT '[]',
    kwargs               jsonb       NOT NULL DEFAULT '{}',
    task_options         jsonb       NOT NULL DEFAULT '{}',
    flags                jsonb       NOT NULL DEFAULT '{}',

    claimed_at           timestamptz,
    claim_expires_at     timestamptz,
    started_at           timestamptz,
    completed_at         timestamptz,
    failed_at            timestamptz,
    terminal_at          timestamptz,
    next_retry_at        timestamptz,
    good_until           timestamptz,
    recovery_hold_until  timestamptz,
    claimed_by_worker_id uuid,
    workflow_id          uuid,
    retry_of             uuid,
    worker_pid           integer,
    workflow_task_index  integer,
    worker_hostname      text,
    worker_process_name  text,
    result               jsonb,
    error_code           text,
    failed_reason        text,
    context              jsonb,
    no_restart           text,
    idempotency_key      text,
    command_sha          text,

    CONSTRAINT horsies_tasks_status CHECK (
        status IN ('PENDING', 'CLAIMED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')),
    CONSTRAINT horsies_tasks_priority CHECK (priority BETWEEN 1 AND 100),
    CONSTRAINT horsies_tasks_claimed CHECK (NOT claimed OR status = 'CLAIMED'),
    CONSTRAINT horsies_tasks_terminal CHECK (
        (terminal_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED'))),
    CONSTRAINT horsies_tasks_no_restart CHECK (no_restart IN ('paused', 'cancelled'))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.01);

CREATE INDEX horsies_tasks_claim ON horsies_tasks (queue_name, priority, enqueued_at, id) WHERE status = 'PENDING';
CREATE INDEX horsies_tasks_lease ON horsies_tasks (queue_name, claim_expires_at)
    WHERE status = 'CLAIMED' AND claim_expires_at IS NOT NULL;
CREATE INDEX horsies_tasks_owner ON horsies_tasks (claimed_by_worker_id, status)
    WHERE status IN ('CLAIMED', 'RUNNING');
CREATE INDEX horsies_tasks_expiry ON horsies_tasks (good_until) WHERE status = 'PENDING' AND good_until IS NOT NULL;
CREATE INDEX horsies_tasks_terminal ON horsies_tasks (terminal_at) WHERE terminal_at IS NOT NULL;
CREATE INDEX horsies_tasks_errors ON horsies_tasks (error_code, terminal_at DESC) WHERE error_code IS NOT NULL;
CREATE INDEX horsies_tasks_workflow ON horsies_tasks (workflow_id) WHERE workflow_id IS NOT NULL;
CREATE UNIQUE INDEX horsies_tasks_idempotency ON horsies_tasks (task_name, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- One row for each execution that began and came to an end. No foreign key: retention deletes attempts with their task.
CREATE TABLE horsies_task_attempts (
    task_id             uuid        NOT NULL,
    attempt             integer     NOT NULL,
    will_retry          boolean     NOT NULL DEFAULT false,
    claim_token         bigint      NOT NULL,
    started_at          timestamptz NOT NULL,
    finished_at         timestamptz NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    outcome             text        NOT NULL,
    error_code          text,
    error_message       text,
    failed_reason       text,
    worker_id           uuid,
    worker_pid          integer,
    worker_hostname     text,
    worker_process_name text,
    PRIMARY KEY (task_id, attempt),
    CONSTRAINT horsies_task_attempts_attempt CHECK (attempt >= 1),
    CONSTRAINT horsies_task_attempts_outcome CHECK (outcome IN ('COMPLETED', 'FAILED', 'WORKER_FAILURE'))
);

CREATE INDEX horsies_task_attempts_errors ON horsies_task_attempts (error_code) WHERE error_code IS NOT NULL;
CREATE INDEX horsies_task_attempts_finished ON horsies_task_attempts (finished_at DESC);

-- Signs of life of live claims and runs. A beat counts only for the claim token that it carries.
CREATE TABLE horsies_heartbeats (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sent_at     timestamptz NOT NULL DEFAULT now(),
    claim_token bigint      NOT NULL,
    task_id     uuid        NOT NULL,
    pid         integer,
    role        text        NOT NULL,
    sender_id   text        NOT NULL,
    hostname    text,
    CONSTRAINT horsies_heartbeats_role CHECK (role IN ('claimer', 'runner'))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.01);

CREATE INDEX horsies_heartbeats_task ON horsies_heartbeats (task_id, role, claim_token, sent_at DESC);
CREATE INDEX horsies_heartbeats_sent ON horsies_heartbeats (sent_at);
