-- Workflow runs, their nodes, and the outbox that asks for a run to be advanced.

CREATE TABLE horsies_workflows (
    id                 uuid        PRIMARY KEY,
    name               text        NOT NULL,
    status             text        NOT NULL,
    on_error           text        NOT NULL,
    output_task_index  integer,
    success_policy     jsonb,
    result             jsonb,
    error              jsonb,
    definition_key     text,
    parent_workflow_id uuid        REFERENCES horsies_workflows ON DELETE CASCADE,
    parent_task_index  integer,
    root_workflow_id   uuid        NOT NULL,
    depth              integer     NOT NULL DEFAULT 0,
    generation         integer     NOT NULL DEFAULT 1,
    sent_at            timestamptz NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    started_at         timestamptz,
    paused_at          timestamptz,
    completed_at       timestamptz,
    updated_at         timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT horsies_workflows_status CHECK (
        status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')),
    CONSTRAINT horsies_workflows_on_error CHECK (on_error IN ('fail', 'pause'))
);

CREATE INDEX horsies_workflows_status ON horsies_workflows (status, updated_at);
CREATE INDEX horsies_workflows_parent ON horsies_workflows (parent_workflow_id);
CREATE INDEX horsies_workflows_root ON horsies_workflows (root_workflow_id);
CREATE INDEX horsies_workflows_completed ON horsies_workflows (completed_at)
    WHERE status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED');
CREATE INDEX horsies_workflows_name ON horsies_workflows (name, created_at DESC);

CREATE TABLE horsies_workflow_tasks (
    id                   uuid        PRIMARY KEY,
    workflow_id          uuid        NOT NULL REFERENCES horsies_workflows ON DELETE CASCADE,
    task_index           integer     NOT NULL,
    node_id              text        NOT NULL,
    task_name            text        NOT NULL,
    task_args            jsonb       NOT NULL DEFAULT '[]',
    task_kwargs          jsonb       NOT NULL DEFAULT '{}',
    queue_name           text,
    priority             smallint,
    dependencies         integer[]   NOT NULL DEFAULT '{}',
    args_from            jsonb       NOT NULL DEFAULT '{}',
    workflow_ctx_from    text[],
    allow_failed_deps    boolean     NOT NULL DEFAULT false,
    join_type            text        NOT NULL DEFAULT 'all',
    min_success          integer,
    good_until           timestamptz,
    task_options         jsonb       NOT NULL DEFAULT '{}',
    status               text        NOT NULL,
    task_id              uuid,
    is_subworkflow       boolean     NOT NULL DEFAULT false,
    sub_workflow_id      uuid        REFERENCES horsies_workflows ON DELETE SET NULL,
    sub_workflow_name    text,
    sub_definition_key   text,
    sub_workflow_summary jsonb,
    result               jsonb,
    error                jsonb,
    created_at           timestamptz NOT NULL DEFAULT now(),
    started_at           timestamptz,
    completed_at         timestamptz,
    CONSTRAINT horsies_workflow_tasks_index UNIQUE (workflow_id, task_index),
    CONSTRAINT horsies_workflow_tasks_node UNIQUE (workflow_id, node_id),
    -- A sub-workflow is no task: its nodes have queues, it has none.
    CONSTRAINT horsies_workflow_tasks_queue CHECK (is_subworkflow OR (queue_name IS NOT NULL AND priority IS NOT NULL)),
    CONSTRAINT horsies_workflow_tasks_priority CHECK (priority BETWEEN 1 AND 100),
    CONSTRAINT horsies_workflow_tasks_join CHECK (join_type IN ('all', 'any', 'quorum')),
    CONSTRAINT horsies_workflow_tasks_status CHECK (
        status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED'))
);

CREATE INDEX horsies_workflow_tasks_status ON horsies_workflow_tasks (workflow_id, status, task_index);
CREATE INDEX horsies_workflow_tasks_task ON horsies_workflow_tasks (task_id);
CREATE INDEX horsies_workflow_tasks_child ON horsies_workflow_tasks (sub_workflow_id);

-- Written by the statement that stores a node's outcome, so that a crash before the advance is found again.
CREATE TABLE horsies_workflow_outbox (
    task_id        uuid        PRIMARY KEY,
    workflow_id    uuid        NOT NULL,
    task_index     integer     NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    tries          integer     NOT NULL DEFAULT 0,
    last_error     text,
    quarantined_at timestamptz
);

CREATE INDEX horsies_workflow_outbox_open ON horsies_workflow_outbox (created_at) WHERE quarantined_at IS NULL;
