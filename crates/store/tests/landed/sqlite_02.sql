-- A database of schema version 2, on SQLite.
PRAGMA foreign_keys = OFF;
CREATE TABLE events (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    tx          BIGINT NOT NULL DEFAULT 0,
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
INSERT INTO "events" VALUES(1,0,1700000000000000,'run','op-1',3,'completed','engine','one','done','here','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1700000000000000,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"","started_at":1700000000000000,"finished_at":1700000000000000}],"at":0,"scan":null,"halt":null,"adopted":false,"started_at":1700000000000000,"finished_at":1700000000000000,"failure":null}');
CREATE TABLE logs (
    run_id      TEXT   NOT NULL,
    start       BIGINT NOT NULL,
    ts          BIGINT NOT NULL,
    step        TEXT   NOT NULL,
    attempt     BIGINT NOT NULL,
    stream      TEXT   NOT NULL,
    data        BLOB NOT NULL,
    PRIMARY KEY (run_id, start)
);
INSERT INTO "logs" VALUES('op-1',0,1700000000000000,'one',1,'stdout',X'6869');
CREATE TABLE machines (
    id          TEXT   NOT NULL PRIMARY KEY,
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
INSERT INTO "machines" VALUES('m-1',1,'READY',1,NULL,'sim','{"env":"prod"}','{"spec":{"ssh_endpoint":"10.0.0.7:22","bmc_endpoint":"10.128.0.7","target_cluster_ref":"cluster-a","mac_addresses":["02:00:00:00:00:07"],"provider":"sim","serial":"S7","customer_id":"c-1"},"conditions":{"Reachable":{"status":true,"reason":"Probed","last_transition":1700000000000000}}}',1700000000000000,1700000000000000);
CREATE TABLE plans (
    id          TEXT   NOT NULL PRIMARY KEY,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
INSERT INTO "plans" VALUES('plan-x','{"id":"plan-x","display_name":"x","steps":[{"name":"one","timeout_seconds":60,"max_retries":1,"effect":{"kind":"ssh","command":"true","destructive":false}}],"default_for":null,"built_in":false,"on_failure":"KEEP_PHASE"}',1700000000000000);
CREATE TABLE removed (
    kind        TEXT   NOT NULL PRIMARY KEY,
    tx          BIGINT NOT NULL,
    seq         BIGINT NOT NULL
);
INSERT INTO "removed" VALUES('run',0,0);
CREATE TABLE replicas (
    name        TEXT   NOT NULL PRIMARY KEY,
    incarnation TEXT   NOT NULL,
    expires_at  BIGINT NOT NULL,
    started_at  BIGINT NOT NULL
);
INSERT INTO "replicas" VALUES('one','one#1',1700000000000000,1700000000000000);
CREATE TABLE runs (
    id          TEXT   NOT NULL PRIMARY KEY,
    machine_id  TEXT   NOT NULL REFERENCES machines (id),
    request_id  TEXT   NOT NULL,
    type        TEXT   NOT NULL,
    plan_id     TEXT   NOT NULL,
    spec        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
INSERT INTO "runs" VALUES('op-1','m-1','r-1','UPGRADE','plan-x','{"id":"op-1","machine_id":"m-1","request_id":"r-1","run_type":"UPGRADE","plan_id":"plan-x","steps":[{"name":"one","timeout_seconds":60,"max_retries":1,"effect":{"kind":"ssh","command":"true","destructive":false}}],"params":{},"initiator":"alice","parent":null,"on_failure":"KEEP_PHASE","engine":1,"created_at":1700000000000000}',1700000000000000);
CREATE TABLE subjects (
    id            TEXT   NOT NULL PRIMARY KEY,
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
, ended_at BIGINT);
INSERT INTO "subjects" VALUES('op-1','run',NULL,3,1,NULL,NULL,1,1,'SUCCEEDED','completed','{"workflow":"completed","steps":[{"of":0,"undo":false,"state":"SUCCEEDED","attempt":1,"budget":2,"open":false,"attempt_since":1700000000000000,"pursuit":"perform","asked":null,"doubt":null,"looks":0,"not_before":null,"message":"","started_at":1700000000000000,"finished_at":1700000000000000}],"at":0,"scan":null,"halt":null,"adopted":false,"started_at":1700000000000000,"finished_at":1700000000000000,"failure":null}',1700000000000000,1700000000000000);
CREATE INDEX machines_active ON machines (active_run) WHERE active_run IS NOT NULL;
CREATE UNIQUE INDEX runs_request ON runs (machine_id, request_id);
CREATE UNIQUE INDEX subjects_holds ON subjects (holds_machine) WHERE holds_machine IS NOT NULL;
CREATE INDEX subjects_due ON subjects (due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX subjects_owner ON subjects (owner) WHERE owner IS NOT NULL;
CREATE UNIQUE INDEX events_object ON events (object_id, version);
CREATE INDEX subjects_ended ON subjects (ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX subjects_phase ON subjects (phase, id) WHERE ended_at IS NOT NULL;
CREATE INDEX events_aged ON events (ts, seq, kind) WHERE kind <> 'run';
CREATE INDEX runs_machine ON runs (machine_id, created_at, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',1);
PRAGMA user_version = 2;
