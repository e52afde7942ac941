-- What happened that an operator should be able to read, and what operators did.

CREATE TABLE horsies_events (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    kind        text        NOT NULL,
    task_id     uuid,
    workflow_id uuid,
    worker_id   uuid,
    claim_token bigint,
    queue_name  text,
    evidence    jsonb       NOT NULL DEFAULT '{}'
);

CREATE INDEX horsies_events_at ON horsies_events (at);
CREATE INDEX horsies_events_task ON horsies_events (task_id, at) WHERE task_id IS NOT NULL;
CREATE INDEX horsies_events_kind ON horsies_events (kind, at);

CREATE TABLE horsies_audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    actor    text        NOT NULL,
    host     text        NOT NULL,
    action   text        NOT NULL,
    reason   text,
    filter   jsonb,
    dry_run  boolean     NOT NULL DEFAULT false,
    matched  integer     NOT NULL DEFAULT 0,
    affected integer     NOT NULL DEFAULT 0,
    skipped  integer     NOT NULL DEFAULT 0,
    via      text        NOT NULL,
    task_ids uuid[]      NOT NULL DEFAULT '{}',
    CONSTRAINT horsies_audit_via CHECK (via IN ('cli', 'tui', 'library'))
);

CREATE INDEX horsies_audit_at ON horsies_audit (at);
