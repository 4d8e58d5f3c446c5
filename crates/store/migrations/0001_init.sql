-- Placeholders in braces differ between the databases; src/driver/*.rs defines them.

CREATE TABLE machines (
    id          {id}   NOT NULL PRIMARY KEY,
    version     BIGINT NOT NULL,
    phase       TEXT   NOT NULL,
    -- The conditions that are true, as bits, for filters.
    holds       BIGINT NOT NULL,
    active_run  TEXT,
    provider    TEXT   NOT NULL,
    labels      TEXT   NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
-- A filter for machines that need an operator must not read the whole fleet.
CREATE INDEX machines_active ON machines (active_run) WHERE active_run IS NOT NULL;

CREATE TABLE plans (
    id          {id}   NOT NULL PRIMARY KEY,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);

-- The immutable part of a run.
CREATE TABLE runs (
    id          {id}   NOT NULL PRIMARY KEY,
    machine_id  TEXT   NOT NULL REFERENCES machines (id),
    request_id  TEXT   NOT NULL,
    type        TEXT   NOT NULL,
    plan_id     TEXT   NOT NULL,
    spec        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE UNIQUE INDEX runs_request ON runs (machine_id, request_id);
CREATE INDEX runs_machine ON runs (machine_id, created_at);

-- The mutable state of every object with a lifecycle, and its row in the queue.
CREATE TABLE subjects (
    id            {id}   NOT NULL PRIMARY KEY,
    kind          TEXT   NOT NULL,
    -- One active run per machine; null once the run has ended.
    holds_machine TEXT,
    version       BIGINT NOT NULL,
    epoch         BIGINT NOT NULL,
    owner         TEXT,
    due_at        BIGINT,
    wakes_asked   BIGINT NOT NULL,
    wakes_handled BIGINT NOT NULL,
    phase         TEXT   NOT NULL,
    workflow      TEXT   NOT NULL,
    state         TEXT   NOT NULL,
    updated_at    BIGINT NOT NULL
);
CREATE UNIQUE INDEX subjects_holds ON subjects (holds_machine) WHERE holds_machine IS NOT NULL;
CREATE INDEX subjects_due ON subjects (due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX subjects_owner ON subjects (owner) WHERE owner IS NOT NULL;

-- Every transition of every object: read by object, a history; read in order, a watch.
CREATE TABLE events (
    seq         {serial},
    tx          {txid},
    ts          BIGINT NOT NULL,
    kind        TEXT   NOT NULL,
    object_id   TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    word        TEXT   NOT NULL,
    cause       TEXT   NOT NULL,
    actor       TEXT   NOT NULL,
    message     TEXT   NOT NULL,
    decided_by  TEXT   NOT NULL,
    body        TEXT   NOT NULL
);
CREATE UNIQUE INDEX events_object ON events (object_id, version);
{events_order}

CREATE TABLE logs (
    run_id      TEXT   NOT NULL,
    start       BIGINT NOT NULL,
    ts          BIGINT NOT NULL,
    step        TEXT   NOT NULL,
    attempt     BIGINT NOT NULL,
    stream      TEXT   NOT NULL,
    data        {bytes} NOT NULL,
    PRIMARY KEY (run_id, start)
);

CREATE TABLE replicas (
    name        TEXT   NOT NULL PRIMARY KEY,
    incarnation TEXT   NOT NULL,
    expires_at  BIGINT NOT NULL,
    started_at  BIGINT NOT NULL
);
