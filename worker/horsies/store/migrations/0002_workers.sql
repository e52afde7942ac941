-- The fleet: one row for each run of a worker, snapshots of its load, and what operators have paused.

CREATE TABLE horsies_workers (
    id                uuid        PRIMARY KEY,
    hostname          text        NOT NULL,
    pid               integer     NOT NULL,
    version           text        NOT NULL,
    queues            text[]      NOT NULL DEFAULT '{}',
    processes         integer     NOT NULL,
    state             text        NOT NULL DEFAULT 'starting',
    started_at        timestamptz NOT NULL DEFAULT now(),
    last_heartbeat_at timestamptz NOT NULL DEFAULT now(),
    stopped_at        timestamptz,
    lost_at           timestamptz,
    recovery_config   jsonb       NOT NULL DEFAULT '{}',
    health            jsonb       NOT NULL DEFAULT '{}',
    CONSTRAINT horsies_workers_state CHECK (state IN ('starting', 'running', 'draining', 'stopped', 'lost'))
);

CREATE INDEX horsies_workers_state ON horsies_workers (state, last_heartbeat_at);

CREATE TABLE horsies_worker_states (
    id                    bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker_id             uuid             NOT NULL,
    snapshot_at           timestamptz      NOT NULL DEFAULT now(),
    worker_started_at     timestamptz      NOT NULL,
    hostname              text             NOT NULL,
    pid                   integer          NOT NULL,
    processes             integer          NOT NULL,
    max_claim_batch       integer          NOT NULL,
    max_claim_per_worker  integer          NOT NULL,
    cluster_wide_cap      integer,
    queues                text[]           NOT NULL,
    queue_priorities      jsonb            NOT NULL DEFAULT '{}',
    queue_max_concurrency jsonb            NOT NULL DEFAULT '{}',
    recovery_config       jsonb            NOT NULL DEFAULT '{}',
    tasks_running         integer          NOT NULL,
    tasks_claimed         integer          NOT NULL,
    memory_usage_mb       double precision,
    memory_percent        double precision,
    cpu_percent           double precision,
    children_memory_mb    double precision
);

CREATE INDEX horsies_worker_states_worker ON horsies_worker_states (worker_id, snapshot_at DESC);
CREATE INDEX horsies_worker_states_snapshot ON horsies_worker_states (snapshot_at);

-- A queue without a row is not paused.
CREATE TABLE horsies_queues (
    queue_name   text        PRIMARY KEY,
    paused_at    timestamptz,
    paused_by    text,
    pause_reason text,
    updated_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE horsies_schedule_state (
    schedule_name text        PRIMARY KEY,
    last_run_at   timestamptz,
    next_run_at   timestamptz,
    last_task_id  uuid,
    run_count     integer     NOT NULL DEFAULT 0,
    config_hash   text        NOT NULL,
    updated_at    timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX horsies_schedule_state_next ON horsies_schedule_state (next_run_at);
