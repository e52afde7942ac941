-- The schema after all migrations, as pg_dump writes it. Made by `make schema`; a test compares it.

CREATE TYPE public.horsies_task_shape AS (
	args text,
	kwargs text,
	task_options text,
	flags text,
	task_name integer,
	queue_name integer
);

CREATE DOMAIN public.horsies_sound_task_shape AS public.horsies_task_shape
	CONSTRAINT horsies_tasks_args CHECK (((VALUE).args = 'array'::text))
	CONSTRAINT horsies_tasks_flags CHECK (((VALUE).flags = 'object'::text))
	CONSTRAINT horsies_tasks_kwargs CHECK (((VALUE).kwargs = 'object'::text))
	CONSTRAINT horsies_tasks_queue_name CHECK ((((VALUE).queue_name >= 1) AND ((VALUE).queue_name <= 255)))
	CONSTRAINT horsies_tasks_task_name CHECK ((((VALUE).task_name >= 1) AND ((VALUE).task_name <= 255)))
	CONSTRAINT horsies_tasks_task_options CHECK (((VALUE).task_options = 'object'::text));

CREATE TYPE public.horsies_task_state AS (
	status text,
	terminal_at timestamp with time zone,
	priority smallint,
	claimed boolean,
	no_restart text
);

CREATE DOMAIN public.horsies_sound_task_state AS public.horsies_task_state
	CONSTRAINT horsies_tasks_claimed CHECK (((NOT (VALUE).claimed) OR ((VALUE).status = 'CLAIMED'::text)))
	CONSTRAINT horsies_tasks_no_restart CHECK (((VALUE).no_restart = ANY (ARRAY['paused'::text, 'cancelled'::text])))
	CONSTRAINT horsies_tasks_priority CHECK ((((VALUE).priority >= 1) AND ((VALUE).priority <= 100)))
	CONSTRAINT horsies_tasks_status CHECK (((VALUE).status = ANY (ARRAY['PENDING'::text, 'CLAIMED'::text, 'RUNNING'::text, 'COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text])))
	CONSTRAINT horsies_tasks_terminal CHECK ((((VALUE).terminal_at IS NOT NULL) = ((VALUE).status = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text]))));

CREATE FUNCTION public.horsies_announce_new_tasks() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('horsies_task_new', due.queue_name)
       FROM (SELECT DISTINCT pg_catalog.left(added.queue_name, 255) AS queue_name
               FROM added
              WHERE added.status = 'PENDING'
                AND added.enqueued_at <= pg_catalog.clock_timestamp() + interval '1 minute') AS due;
    RETURN NULL;
END
$$;

CREATE FUNCTION public.horsies_lock_in_flight(cluster_is_capped boolean, capped_queues text[]) RETURNS TABLE(queue_name text, tasks bigint)
    LANGUAGE plpgsql ROWS 10
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET lock_timeout TO '3s'
    AS $$
BEGIN
    IF cluster_is_capped THEN
        PERFORM pg_catalog.pg_advisory_xact_lock(horsies_lock_key('claim'));
    END IF;
    PERFORM pg_catalog.pg_advisory_xact_lock(capped.key)
       FROM (SELECT horsies_lock_key('claim/' || queue) AS key
               FROM pg_catalog.unnest(capped_queues) AS queue
              ORDER BY key) AS capped;
    RETURN QUERY
    SELECT t.queue_name, pg_catalog.count(*)
      FROM horsies_tasks AS t
     WHERE t.status IN ('CLAIMED', 'RUNNING')
       AND (t.status = 'RUNNING' OR t.claim_expires_at IS NULL OR t.claim_expires_at > pg_catalog.now())
     GROUP BY t.queue_name;
END
$$;

CREATE FUNCTION public.horsies_lock_key(purpose text) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT pg_catalog.hashtextextended(pg_catalog.current_schema()::text || '/' || purpose, 0::bigint) $$;

CREATE TABLE public.horsies_tasks (
    id uuid NOT NULL,
    sent_at timestamp with time zone NOT NULL,
    enqueued_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    claim_token bigint DEFAULT 0 NOT NULL,
    retry_count integer DEFAULT 0 NOT NULL,
    max_retries integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    crash_count integer DEFAULT 0 NOT NULL,
    priority smallint DEFAULT 100 NOT NULL,
    claimed boolean DEFAULT false NOT NULL,
    is_workflow_task boolean DEFAULT false NOT NULL,
    overlap_possible boolean DEFAULT false NOT NULL,
    kill_requested boolean DEFAULT false NOT NULL,
    status text DEFAULT 'PENDING'::text NOT NULL,
    task_name text NOT NULL,
    queue_name text DEFAULT 'default'::text NOT NULL,
    enqueue_sha text NOT NULL,
    args jsonb DEFAULT '[]'::jsonb NOT NULL,
    kwargs jsonb DEFAULT '{}'::jsonb NOT NULL,
    task_options jsonb DEFAULT '{}'::jsonb NOT NULL,
    flags jsonb DEFAULT '{}'::jsonb NOT NULL,
    claimed_at timestamp with time zone,
    claim_expires_at timestamp with time zone,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    failed_at timestamp with time zone,
    terminal_at timestamp with time zone,
    next_retry_at timestamp with time zone,
    good_until timestamp with time zone,
    recovery_hold_until timestamp with time zone,
    claimed_by_worker_id uuid,
    workflow_id uuid,
    retry_of uuid,
    worker_pid integer,
    workflow_task_index integer,
    worker_hostname text,
    worker_process_name text,
    result jsonb,
    error_code text,
    failed_reason text,
    context jsonb,
    no_restart text,
    idempotency_key text,
    command_sha text,
    lost_starts smallint DEFAULT 0 NOT NULL,
    CONSTRAINT horsies_tasks_state CHECK ((((ROW(status, terminal_at, priority, claimed, no_restart))::public.horsies_sound_task_state).status IS NOT NULL))
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.01');

CREATE FUNCTION public.horsies_lock_stale(seen_id uuid, seen_status text, seen_token bigint, seen_beat_at timestamp with time zone, seen_no_restart text) RETURNS SETOF public.horsies_tasks
    LANGUAGE plpgsql ROWS 1
    AS $$
BEGIN
    PERFORM FROM horsies_tasks AS t WHERE t.id = seen_id FOR NO KEY UPDATE;
    RETURN QUERY
    SELECT t.*
      FROM horsies_tasks AS t
     WHERE t.id = seen_id AND t.status = seen_status AND t.claim_token = seen_token
       AND t.no_restart IS NOT DISTINCT FROM seen_no_restart
       AND (t.recovery_hold_until IS NULL OR t.recovery_hold_until <= now())
       AND NOT EXISTS (SELECT
                         FROM horsies_heartbeats AS b
                        WHERE b.task_id = t.id AND b.claim_token = t.claim_token AND b.sent_at > seen_beat_at
                          AND b.role = CASE seen_status WHEN 'CLAIMED' THEN 'claimer' ELSE 'runner' END);
END
$$;

CREATE TABLE public.horsies_workflow_tasks (
    id uuid NOT NULL,
    workflow_id uuid NOT NULL,
    task_index integer NOT NULL,
    node_id text NOT NULL,
    task_name text NOT NULL,
    task_args jsonb DEFAULT '[]'::jsonb NOT NULL,
    task_kwargs jsonb DEFAULT '{}'::jsonb NOT NULL,
    queue_name text,
    priority smallint,
    dependencies integer[] DEFAULT '{}'::integer[] NOT NULL,
    args_from jsonb DEFAULT '{}'::jsonb NOT NULL,
    workflow_ctx_from text[],
    allow_failed_deps boolean DEFAULT false NOT NULL,
    join_type text DEFAULT 'all'::text NOT NULL,
    min_success integer,
    good_until timestamp with time zone,
    task_options jsonb DEFAULT '{}'::jsonb NOT NULL,
    status text NOT NULL,
    task_id uuid,
    is_subworkflow boolean DEFAULT false NOT NULL,
    sub_workflow_id uuid,
    sub_workflow_name text,
    sub_definition_key text,
    sub_workflow_summary jsonb,
    result jsonb,
    error jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    max_retries integer DEFAULT 0 NOT NULL,
    dependents integer[],
    CONSTRAINT horsies_workflow_tasks_join CHECK ((join_type = ANY (ARRAY['all'::text, 'any'::text, 'quorum'::text]))),
    CONSTRAINT horsies_workflow_tasks_priority CHECK (((priority >= 1) AND (priority <= 100))),
    CONSTRAINT horsies_workflow_tasks_queue CHECK ((is_subworkflow OR ((queue_name IS NOT NULL) AND (priority IS NOT NULL)))),
    CONSTRAINT horsies_workflow_tasks_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'READY'::text, 'ENQUEUED'::text, 'RUNNING'::text, 'COMPLETED'::text, 'FAILED'::text, 'SKIPPED'::text])))
)
WITH (fillfactor='60');

CREATE FUNCTION public.horsies_node_context(node public.horsies_workflow_tasks) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    SELECT pg_catalog.jsonb_build_object('workflow_meta', pg_catalog.jsonb_build_object(
               'workflow_id', node.workflow_id, 'task_index', node.task_index, 'task_name', node.task_name))
        || CASE WHEN node.args_from = '{}' THEN '{}' ELSE pg_catalog.jsonb_build_object('args_from', (
               SELECT coalesce(pg_catalog.jsonb_object_agg(wanted.key, horsies_node_result(d)), '{}')
                 FROM pg_catalog.jsonb_each(node.args_from) AS wanted
                 JOIN horsies_workflow_tasks AS d
                   ON d.workflow_id = node.workflow_id AND d.task_index = wanted.value::integer
                WHERE d.status IN ('COMPLETED', 'FAILED', 'SKIPPED'))) END
        || CASE WHEN node.workflow_ctx_from IS NULL THEN '{}' ELSE pg_catalog.jsonb_build_object('workflow_ctx', (
               SELECT coalesce(pg_catalog.jsonb_object_agg(d.node_id,
                          pg_catalog.jsonb_build_object('result', horsies_node_result(d), 'task_name', d.task_name)
                          || CASE WHEN d.sub_workflow_summary IS NULL THEN '{}'
                                  ELSE pg_catalog.jsonb_build_object('summary', d.sub_workflow_summary) END), '{}')
                 FROM horsies_workflow_tasks AS d
                WHERE d.workflow_id = node.workflow_id AND d.node_id = ANY(node.workflow_ctx_from))) END
$$;

CREATE FUNCTION public.horsies_node_result(node public.horsies_workflow_tasks) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN node.status = 'SKIPPED' THEN pg_catalog.jsonb_build_object('err', node.error) ELSE node.result END
$$;

CREATE FUNCTION public.horsies_notify_schedules() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_notify('horsies_schedules', '');
    RETURN NULL;
END
$$;

CREATE FUNCTION public.horsies_quiet(in_status text, after_id uuid, threshold interval, heard_since timestamp with time zone, owner_id uuid, with_held boolean, page_size integer) RETURNS TABLE(id uuid, last_beat_at timestamp with time zone)
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
DECLARE
    beats_by text := CASE in_status WHEN 'CLAIMED' THEN 'claimer' ELSE 'runner' END;
BEGIN
    RETURN QUERY
    WITH live AS MATERIALIZED (
        SELECT t.id, t.claim_token, t.claimed_by_worker_id,
               coalesce(CASE t.status WHEN 'RUNNING' THEN t.started_at END, t.claimed_at, t.enqueued_at) AS began_at
          FROM horsies_tasks AS t
         WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.status = in_status AND t.id > after_id
           AND (owner_id IS NULL OR t.claimed_by_worker_id = owner_id)
           AND (with_held OR t.recovery_hold_until IS NULL OR t.recovery_hold_until <= now())
    ), suspect AS (
        SELECT live.*, false AS is_certain
          FROM live
         WHERE NOT EXISTS (SELECT
                             FROM horsies_heartbeats AS b
                            WHERE b.sent_at > now() - least(threshold, interval '45 s') AND b.role = beats_by
                              AND b.task_id = live.id AND b.claim_token = live.claim_token)
         UNION ALL
        SELECT live.*, true
          FROM horsies_workers AS w
          JOIN live ON live.claimed_by_worker_id = w.id
         WHERE w.state = 'stopped'
    ), heard AS (
        SELECT s.id, s.is_certain, coalesce(beat.sent_at, s.began_at) AS last_at
          FROM suspect AS s
          LEFT JOIN LATERAL (
               SELECT b.sent_at
                 FROM horsies_heartbeats AS b
                WHERE b.task_id = s.id AND b.claim_token = s.claim_token AND b.role = beats_by
                ORDER BY b.sent_at DESC
                LIMIT 1) AS beat ON true
    )
    SELECT h.id, max(h.last_at)
      FROM heard AS h
     WHERE h.is_certain OR greatest(h.last_at, heard_since) <= now() - threshold
     GROUP BY h.id
     ORDER BY h.id
     LIMIT page_size;
END
$$;

CREATE TABLE public.horsies_workflows (
    id uuid NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    on_error text NOT NULL,
    output_task_index integer,
    success_policy jsonb,
    result jsonb,
    error jsonb,
    definition_key text,
    parent_workflow_id uuid,
    parent_task_index integer,
    root_workflow_id uuid NOT NULL,
    depth integer DEFAULT 0 NOT NULL,
    generation integer DEFAULT 1 NOT NULL,
    sent_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    paused_at timestamp with time zone,
    completed_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT horsies_workflows_on_error CHECK ((on_error = ANY (ARRAY['fail'::text, 'pause'::text]))),
    CONSTRAINT horsies_workflows_status CHECK ((status = ANY (ARRAY['PENDING'::text, 'RUNNING'::text, 'PAUSED'::text, 'COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text])))
);

CREATE FUNCTION public.horsies_run_summary(run public.horsies_workflows) RETURNS jsonb
    LANGUAGE sql STABLE
    AS $$
    SELECT pg_catalog.jsonb_build_object(
               'status', run.status,
               'output', CASE WHEN run.output_task_index IS NOT NULL THEN run.result -> 'ok'::text END,
               'total_tasks', pg_catalog.count(*),
               'completed_tasks', pg_catalog.count(*) FILTER (WHERE n.status = 'COMPLETED'),
               'failed_tasks', pg_catalog.count(*) FILTER (WHERE n.status = 'FAILED'),
               'skipped_tasks', pg_catalog.count(*) FILTER (WHERE n.status = 'SKIPPED'),
               'error_summary', pg_catalog.concat_ws(': ', run.error ->> 'error_code'::text,
                                                     run.error ->> 'message'::text))
      FROM horsies_workflow_tasks AS n
     WHERE n.workflow_id = run.id
$$;

CREATE TABLE public.horsies_audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    host text NOT NULL,
    action text NOT NULL,
    reason text,
    filter jsonb,
    dry_run boolean DEFAULT false NOT NULL,
    matched integer DEFAULT 0 NOT NULL,
    affected integer DEFAULT 0 NOT NULL,
    skipped integer DEFAULT 0 NOT NULL,
    via text NOT NULL,
    task_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    db_role text DEFAULT SESSION_USER,
    client_addr inet DEFAULT inet_client_addr(),
    CONSTRAINT horsies_audit_via CHECK ((via = ANY (ARRAY['cli'::text, 'tui'::text, 'library'::text])))
);

ALTER TABLE public.horsies_audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.horsies_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW public.horsies_ended_tasks AS
 SELECT id,
    terminal_at
   FROM public.horsies_tasks task
  WHERE ((terminal_at IS NOT NULL) AND ((workflow_id IS NULL) OR (NOT (EXISTS ( SELECT
           FROM public.horsies_workflows run
          WHERE (run.id = task.workflow_id))))));

CREATE VIEW public.horsies_ended_trees AS
 SELECT id,
    completed_at
   FROM public.horsies_workflows root
  WHERE ((parent_workflow_id IS NULL) AND (status = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text])) AND (NOT (EXISTS ( SELECT
           FROM public.horsies_workflows run
          WHERE ((run.root_workflow_id = root.id) AND (run.status = ANY (ARRAY['PENDING'::text, 'RUNNING'::text, 'PAUSED'::text])))))) AND (NOT (EXISTS ( SELECT
           FROM (public.horsies_workflows run
             JOIN public.horsies_tasks task ON ((task.workflow_id = run.id)))
          WHERE ((run.root_workflow_id = root.id) AND (task.terminal_at IS NULL))))));

CREATE TABLE public.horsies_workers (
    id uuid NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    queues text[] DEFAULT '{}'::text[] NOT NULL,
    processes integer NOT NULL,
    state text DEFAULT 'starting'::text NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    last_heartbeat_at timestamp with time zone DEFAULT now() NOT NULL,
    stopped_at timestamp with time zone,
    lost_at timestamp with time zone,
    recovery_config jsonb DEFAULT '{}'::jsonb NOT NULL,
    health jsonb DEFAULT '{}'::jsonb NOT NULL,
    catalog_hash text,
    CONSTRAINT horsies_workers_state CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'draining'::text, 'stopped'::text, 'lost'::text])))
);

CREATE VIEW public.horsies_ended_workers AS
 SELECT id,
    GREATEST(last_heartbeat_at, stopped_at, lost_at) AS ended_at
   FROM public.horsies_workers worker
  WHERE ((state = ANY (ARRAY['stopped'::text, 'lost'::text])) AND (NOT (EXISTS ( SELECT
           FROM public.horsies_tasks task
          WHERE ((task.claimed_by_worker_id = worker.id) AND (task.status = ANY (ARRAY['CLAIMED'::text, 'RUNNING'::text])))))));

CREATE TABLE public.horsies_events (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    kind text NOT NULL,
    task_id uuid,
    workflow_id uuid,
    worker_id uuid,
    claim_token bigint,
    queue_name text,
    evidence jsonb DEFAULT '{}'::jsonb NOT NULL
);

ALTER TABLE public.horsies_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.horsies_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.horsies_heartbeats (
    id bigint NOT NULL,
    sent_at timestamp with time zone DEFAULT now() NOT NULL,
    claim_token bigint NOT NULL,
    task_id uuid NOT NULL,
    pid integer,
    role text NOT NULL,
    sender_id text NOT NULL,
    hostname text,
    CONSTRAINT horsies_heartbeats_role CHECK ((role = ANY (ARRAY['claimer'::text, 'runner'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_insert_scale_factor='0.01');

ALTER TABLE public.horsies_heartbeats ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.horsies_heartbeats_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.horsies_migrations (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE VIEW public.horsies_old_audit AS
 SELECT id,
    at
   FROM public.horsies_audit entry
  WHERE ((at < (now() - '30 days'::interval)) AND (NOT (EXISTS ( SELECT
           FROM public.horsies_workers worker
          WHERE ((worker.state = ANY (ARRAY['starting'::text, 'running'::text, 'draining'::text])) AND
                CASE jsonb_typeof((worker.health -> 'audit_retention_hours'::text))
                    WHEN 'null'::text THEN true
                    WHEN 'number'::text THEN (entry.at >= (now() - make_interval(secs => (LEAST(((worker.health ->> 'audit_retention_hours'::text))::double precision, (87600.0)::double precision) * (3600.0)::double precision))))
                    ELSE false
                END)))));

CREATE TABLE public.horsies_queues (
    queue_name text NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    pause_reason text,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.horsies_schedule_participants (
    id uuid NOT NULL,
    owner text NOT NULL,
    names text[] NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.horsies_schedule_runs (
    id bigint NOT NULL,
    schedule_name text NOT NULL,
    slot_at timestamp with time zone NOT NULL,
    kind text DEFAULT 'clock'::text NOT NULL,
    outcome text NOT NULL,
    reason text,
    task_id uuid,
    workflow_id uuid,
    fired_at timestamp with time zone,
    fired_by uuid,
    revision integer DEFAULT 1 NOT NULL,
    CONSTRAINT horsies_schedule_runs_kind CHECK ((kind = ANY (ARRAY['clock'::text, 'backfill'::text, 'manual'::text]))),
    CONSTRAINT horsies_schedule_runs_outcome CHECK ((outcome = ANY (ARRAY['fired'::text, 'skipped'::text, 'refused'::text, 'waiting'::text])))
);

ALTER TABLE public.horsies_schedule_runs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.horsies_schedule_runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.horsies_schedule_state (
    schedule_name text NOT NULL,
    last_run_at timestamp with time zone,
    next_run_at timestamp with time zone,
    last_task_id uuid,
    run_count integer DEFAULT 0 NOT NULL,
    config_hash text NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    owner text DEFAULT ''::text NOT NULL,
    source text DEFAULT 'code'::text NOT NULL,
    state text DEFAULT 'active'::text NOT NULL,
    definition jsonb DEFAULT '{}'::jsonb NOT NULL,
    call jsonb DEFAULT '{}'::jsonb NOT NULL,
    revision integer DEFAULT 1 NOT NULL,
    old_hashes text[] DEFAULT '{}'::text[] NOT NULL,
    anchor_at timestamp with time zone,
    last_slot_at timestamp with time zone,
    waiting_slot_at timestamp with time zone,
    tz_version text,
    paused_at timestamp with time zone,
    paused_by text,
    pause_reason text,
    resumed_at timestamp with time zone,
    failures integer DEFAULT 0 NOT NULL,
    refusals integer DEFAULT 0 NOT NULL,
    CONSTRAINT horsies_schedule_state_source CHECK ((source = ANY (ARRAY['code'::text, 'toml'::text, 'dynamic'::text]))),
    CONSTRAINT horsies_schedule_state_state CHECK ((state = ANY (ARRAY['active'::text, 'disabled'::text, 'retired'::text])))
);

CREATE VIEW public.horsies_spent_heartbeats AS
 SELECT id,
    sent_at
   FROM public.horsies_heartbeats beat
  WHERE (NOT (EXISTS ( SELECT
           FROM public.horsies_tasks task
          WHERE ((task.id = beat.task_id) AND (task.claim_token = beat.claim_token) AND (task.status = ANY (ARRAY['CLAIMED'::text, 'RUNNING'::text])) AND (beat.sent_at = ( SELECT newest.sent_at
                   FROM public.horsies_heartbeats newest
                  WHERE ((newest.task_id = beat.task_id) AND (newest.role = beat.role) AND (newest.claim_token >= beat.claim_token))
                  ORDER BY newest.claim_token, newest.sent_at DESC
                 LIMIT 1))))));

CREATE VIEW public.horsies_spent_schedule_runs AS
 SELECT id,
    slot_at
   FROM public.horsies_schedule_runs run
  WHERE (slot_at < ( SELECT newest.slot_at
           FROM public.horsies_schedule_runs newest
          WHERE ((newest.schedule_name = run.schedule_name) AND (newest.kind <> 'manual'::text))
          ORDER BY newest.slot_at DESC
         OFFSET 49
         LIMIT 1));

CREATE TABLE public.horsies_task_attempts (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    will_retry boolean DEFAULT false NOT NULL,
    claim_token bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    error_code text,
    error_message text,
    failed_reason text,
    worker_id uuid,
    worker_pid integer,
    worker_hostname text,
    worker_process_name text,
    CONSTRAINT horsies_task_attempts_attempt CHECK ((attempt >= 1)),
    CONSTRAINT horsies_task_attempts_outcome CHECK ((outcome = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'WORKER_FAILURE'::text])))
);

CREATE TABLE public.horsies_task_catalog (
    catalog_hash text NOT NULL,
    task_name text NOT NULL,
    queue_name text NOT NULL,
    priority smallint,
    max_retries integer NOT NULL,
    options jsonb DEFAULT '{}'::jsonb NOT NULL,
    params_schema jsonb DEFAULT '{}'::jsonb NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.horsies_worker_states (
    id bigint NOT NULL,
    worker_id uuid NOT NULL,
    snapshot_at timestamp with time zone DEFAULT now() NOT NULL,
    worker_started_at timestamp with time zone NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    processes integer NOT NULL,
    max_claim_batch integer NOT NULL,
    max_claim_per_worker integer NOT NULL,
    cluster_wide_cap integer,
    queues text[] NOT NULL,
    queue_priorities jsonb DEFAULT '{}'::jsonb NOT NULL,
    queue_max_concurrency jsonb DEFAULT '{}'::jsonb NOT NULL,
    recovery_config jsonb DEFAULT '{}'::jsonb NOT NULL,
    tasks_running integer NOT NULL,
    tasks_claimed integer NOT NULL,
    memory_usage_mb double precision,
    memory_percent double precision,
    cpu_percent double precision,
    children_memory_mb double precision
);

ALTER TABLE public.horsies_worker_states ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.horsies_worker_states_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.horsies_workflow_outbox (
    task_id uuid NOT NULL,
    workflow_id uuid NOT NULL,
    task_index integer NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    last_error text,
    quarantined_at timestamp with time zone,
    needs text,
    retry_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE ONLY public.horsies_audit
    ADD CONSTRAINT horsies_audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_events
    ADD CONSTRAINT horsies_events_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_heartbeats
    ADD CONSTRAINT horsies_heartbeats_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_migrations
    ADD CONSTRAINT horsies_migrations_pkey PRIMARY KEY (version);

ALTER TABLE public.horsies_queues
    ADD CONSTRAINT horsies_queues_name CHECK (((length(queue_name) >= 1) AND (length(queue_name) <= 255))) NOT VALID;

ALTER TABLE ONLY public.horsies_queues
    ADD CONSTRAINT horsies_queues_pkey PRIMARY KEY (queue_name);

ALTER TABLE ONLY public.horsies_schedule_participants
    ADD CONSTRAINT horsies_schedule_participants_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_schedule_runs
    ADD CONSTRAINT horsies_schedule_runs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_schedule_state
    ADD CONSTRAINT horsies_schedule_state_pkey PRIMARY KEY (schedule_name);

ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT horsies_task_attempts_pkey PRIMARY KEY (task_id, attempt);

ALTER TABLE ONLY public.horsies_task_catalog
    ADD CONSTRAINT horsies_task_catalog_pkey PRIMARY KEY (catalog_hash, task_name);

ALTER TABLE ONLY public.horsies_tasks
    ADD CONSTRAINT horsies_tasks_pkey PRIMARY KEY (id);

ALTER TABLE public.horsies_tasks
    ADD CONSTRAINT horsies_tasks_shape CHECK (((claim_token > 0) OR (terminal_at IS NOT NULL) OR (((ROW(jsonb_typeof(args), jsonb_typeof(kwargs), jsonb_typeof(task_options), jsonb_typeof(flags), length(task_name), length(queue_name)))::public.horsies_sound_task_shape).args IS NOT NULL))) NOT VALID;

ALTER TABLE ONLY public.horsies_worker_states
    ADD CONSTRAINT horsies_worker_states_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_workers
    ADD CONSTRAINT horsies_workers_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_workflow_outbox
    ADD CONSTRAINT horsies_workflow_outbox_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT horsies_workflow_tasks_index UNIQUE (workflow_id, task_index);

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT horsies_workflow_tasks_node UNIQUE (workflow_id, node_id);

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT horsies_workflow_tasks_pkey PRIMARY KEY (id);

ALTER TABLE public.horsies_workflow_tasks
    ADD CONSTRAINT horsies_workflow_tasks_shape CHECK (((status <> ALL (ARRAY['PENDING'::text, 'READY'::text])) OR ((jsonb_typeof(task_args) = 'array'::text) AND (jsonb_typeof(task_kwargs) = 'object'::text) AND (jsonb_typeof(args_from) = 'object'::text) AND (jsonb_typeof(task_options) = 'object'::text) AND (length(task_name) <= 255) AND (length(node_id) <= 255) AND (length(queue_name) <= 255)))) NOT VALID;

ALTER TABLE ONLY public.horsies_workflows
    ADD CONSTRAINT horsies_workflows_pkey PRIMARY KEY (id);

CREATE INDEX horsies_audit_at ON public.horsies_audit USING btree (at);

CREATE INDEX horsies_events_at ON public.horsies_events USING btree (at);

CREATE INDEX horsies_events_kind ON public.horsies_events USING btree (kind, at);

CREATE INDEX horsies_events_task ON public.horsies_events USING btree (task_id, at) WHERE (task_id IS NOT NULL);

CREATE INDEX horsies_heartbeats_sent ON public.horsies_heartbeats USING btree (sent_at);

CREATE INDEX horsies_heartbeats_task ON public.horsies_heartbeats USING btree (task_id, role, claim_token, sent_at DESC);

CREATE INDEX horsies_schedule_runs_age ON public.horsies_schedule_runs USING brin (slot_at);

CREATE INDEX horsies_schedule_runs_manual ON public.horsies_schedule_runs USING btree (schedule_name, slot_at) WHERE (kind = 'manual'::text);

CREATE UNIQUE INDEX horsies_schedule_runs_slot ON public.horsies_schedule_runs USING btree (schedule_name, slot_at) WHERE (kind <> 'manual'::text);

CREATE INDEX horsies_schedule_state_due ON public.horsies_schedule_state USING btree (next_run_at) WHERE ((state = 'active'::text) AND (paused_at IS NULL));

CREATE INDEX horsies_schedule_state_waiting ON public.horsies_schedule_state USING btree (schedule_name) WHERE ((state = 'active'::text) AND (paused_at IS NULL) AND (waiting_slot_at IS NOT NULL));

CREATE INDEX horsies_task_attempts_errors ON public.horsies_task_attempts USING btree (error_code) WHERE (error_code IS NOT NULL);

CREATE INDEX horsies_task_attempts_finished ON public.horsies_task_attempts USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX horsies_tasks_claim ON public.horsies_tasks USING btree (queue_name, priority, enqueued_at, id) WHERE (status = 'PENDING'::text);

CREATE INDEX horsies_tasks_errors ON public.horsies_tasks USING btree (error_code, terminal_at DESC) WHERE (error_code IS NOT NULL);

CREATE INDEX horsies_tasks_expiry ON public.horsies_tasks USING btree (good_until) WHERE ((status = 'PENDING'::text) AND (good_until IS NOT NULL));

CREATE INDEX horsies_tasks_failed ON public.horsies_tasks USING btree (terminal_at, queue_name) WHERE (status = 'FAILED'::text);

CREATE UNIQUE INDEX horsies_tasks_idempotency ON public.horsies_tasks USING btree (task_name, idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE INDEX horsies_tasks_lease ON public.horsies_tasks USING btree (queue_name, claim_expires_at) WHERE ((status = 'CLAIMED'::text) AND (claim_expires_at IS NOT NULL));

CREATE INDEX horsies_tasks_owner ON public.horsies_tasks USING btree (claimed_by_worker_id, status) WHERE (status = ANY (ARRAY['CLAIMED'::text, 'RUNNING'::text]));

CREATE INDEX horsies_tasks_terminal ON public.horsies_tasks USING btree (terminal_at) WHERE (terminal_at IS NOT NULL);

CREATE INDEX horsies_tasks_unstarted_nodes ON public.horsies_tasks USING btree (id) WHERE (is_workflow_task AND (status = ANY (ARRAY['PENDING'::text, 'CLAIMED'::text])));

CREATE INDEX horsies_tasks_workflow ON public.horsies_tasks USING btree (workflow_id) WHERE (workflow_id IS NOT NULL);

CREATE INDEX horsies_worker_states_snapshot ON public.horsies_worker_states USING btree (snapshot_at);

CREATE INDEX horsies_worker_states_worker ON public.horsies_worker_states USING btree (worker_id, snapshot_at DESC);

CREATE INDEX horsies_workers_state ON public.horsies_workers USING btree (state, last_heartbeat_at);

CREATE INDEX horsies_workflow_outbox_open ON public.horsies_workflow_outbox USING btree (created_at) WHERE (quarantined_at IS NULL);

CREATE INDEX horsies_workflow_tasks_child ON public.horsies_workflow_tasks USING btree (sub_workflow_id);

CREATE INDEX horsies_workflow_tasks_task ON public.horsies_workflow_tasks USING btree (task_id);

CREATE INDEX horsies_workflows_completed ON public.horsies_workflows USING btree (completed_at) WHERE (status = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text]));

CREATE INDEX horsies_workflows_name ON public.horsies_workflows USING btree (name, created_at DESC);

CREATE INDEX horsies_workflows_parent ON public.horsies_workflows USING btree (parent_workflow_id);

CREATE INDEX horsies_workflows_root ON public.horsies_workflows USING btree (root_workflow_id);

CREATE INDEX horsies_workflows_status ON public.horsies_workflows USING btree (status, updated_at);

CREATE TRIGGER horsies_schedule_added AFTER INSERT ON public.horsies_schedule_state FOR EACH STATEMENT EXECUTE FUNCTION public.horsies_notify_schedules();

CREATE TRIGGER horsies_schedule_changed AFTER UPDATE ON public.horsies_schedule_state FOR EACH ROW WHEN (((new.next_run_at < old.next_run_at) OR (old.next_run_at IS NULL) OR (new.state IS DISTINCT FROM old.state) OR ((new.paused_at IS NULL) AND (old.paused_at IS NOT NULL)))) EXECUTE FUNCTION public.horsies_notify_schedules();

CREATE TRIGGER horsies_tasks_announce AFTER INSERT ON public.horsies_tasks REFERENCING NEW TABLE AS added FOR EACH STATEMENT WHEN ((current_setting('horsies.announce'::text, true) IS DISTINCT FROM 'off'::text)) EXECUTE FUNCTION public.horsies_announce_new_tasks();

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT horsies_workflow_tasks_sub_workflow_id_fkey FOREIGN KEY (sub_workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE SET NULL;

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT horsies_workflow_tasks_workflow_id_fkey FOREIGN KEY (workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.horsies_workflows
    ADD CONSTRAINT horsies_workflows_parent_workflow_id_fkey FOREIGN KEY (parent_workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE CASCADE;
