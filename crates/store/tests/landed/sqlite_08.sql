-- A database of schema version 8, on SQLite.
PRAGMA foreign_keys = OFF;
CREATE TABLE credentials (
    name        TEXT   NOT NULL PRIMARY KEY,
    kind        TEXT   NOT NULL,
    login       TEXT   NOT NULL,
    sealed      BLOB NOT NULL,
    version     BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
INSERT INTO "credentials" VALUES('bmc','password','root',X'00FF',1,1700000000000000);
CREATE TABLE deployment_macs (
    mac         TEXT   NOT NULL PRIMARY KEY,
    key         TEXT   NOT NULL
);
CREATE TABLE deployments (
    key         TEXT   NOT NULL PRIMARY KEY,
    run_id      TEXT   NOT NULL,
    machine_id  TEXT   NOT NULL,
    image       TEXT   NOT NULL,
    token       TEXT   NOT NULL UNIQUE,
    session     TEXT   UNIQUE,
    is_open     BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL
);
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
CREATE TABLE firmware (
    id            TEXT   NOT NULL PRIMARY KEY,
    hardware_type TEXT   NOT NULL,
    is_default    BIGINT NOT NULL,
    available     BIGINT NOT NULL,
    body          TEXT   NOT NULL,
    created_at    BIGINT NOT NULL
);
INSERT INTO "firmware" VALUES('fw-1','x',0,1,'{"id":"fw-1","hardware_type":"x","description":"","components":{"switch":[{"name":"BMC","version":"2","url":"https://files.example/x","sha256":"abababababababababababababababababababababababababababababababab"}]},"is_default":false,"available":true,"created_at":1700000000000000}',1700000000000000);
CREATE TABLE firmware_applied (
    run_id      TEXT   NOT NULL,
    step        TEXT   NOT NULL,
    device      TEXT   NOT NULL,
    component   TEXT   NOT NULL,
    previous    TEXT   NOT NULL,
    version     TEXT   NOT NULL,
    changed     BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    PRIMARY KEY (run_id, step)
);
INSERT INTO "firmware_applied" VALUES('op-1','one','switch:sw-1','BMC','1','2',1,1700000000000000);
CREATE TABLE health (
    object_id   TEXT   NOT NULL,
    source      TEXT   NOT NULL,
    kind        TEXT   NOT NULL,
    allocations BIGINT NOT NULL,
    changes     BIGINT NOT NULL,
    other       BIGINT NOT NULL,
    suppressed  BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (object_id, source)
);
CREATE TABLE identities (
    peer        TEXT   NOT NULL PRIMARY KEY,
    identity    TEXT   NOT NULL,
    first_seen  BIGINT NOT NULL
);
INSERT INTO "identities" VALUES('https://10.128.0.7','sha256:ab',1700000000000000);
CREATE TABLE images (
    name        TEXT   NOT NULL PRIMARY KEY,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
INSERT INTO "images" VALUES('debian-12','{"name":"debian-12","body":{"kind":"disk","format":"raw","file":{"sha256":"abababababababababababababababababababababababababababababababab","size":10,"url":null}},"created_at":1700000000000000}',1700000000000000);
CREATE TABLE lockouts (
    peer        TEXT   NOT NULL PRIMARY KEY,
    credential  TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    said        TEXT   NOT NULL,
    since       BIGINT NOT NULL
);
INSERT INTO "lockouts" VALUES('https://10.128.0.8','bmc',1,'no',1700000000000000);
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
CREATE TABLE machine_labels (
    key         TEXT   NOT NULL,
    value       TEXT   NOT NULL,
    machine_id  TEXT   NOT NULL,
    PRIMARY KEY (key, value, machine_id)
) WITHOUT ROWID;
INSERT INTO "machine_labels" VALUES('env','prod','m-1');
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
, rack_id TEXT);
INSERT INTO "machines" VALUES('m-1',1,'READY',1,NULL,'sim','{"env":"prod"}','{"spec":{"ssh_endpoint":"10.0.0.7:22","bmc_endpoint":"10.128.0.7","target_cluster_ref":"cluster-a","mac_addresses":["02:00:00:00:00:07"],"provider":"sim","serial":"S7","customer_id":"c-1"},"conditions":{"Reachable":{"status":true,"reason":"Probed","last_transition":1700000000000000}}}',1700000000000000,1700000000000000,NULL);
CREATE TABLE nodes (
    id          TEXT   NOT NULL PRIMARY KEY,
    machine_id  TEXT   NOT NULL,
    site_id     TEXT,
    live        BIGINT NOT NULL,
    heard_at    BIGINT,
    -- When the node went offline because of its silence; null after the next heartbeat.
    lost_at     BIGINT,
    problems    TEXT   NOT NULL,
    -- Checksums of the enrollment token and of the session.
    token       TEXT,
    ticket      TEXT,
    session     TEXT
);
INSERT INTO "nodes" VALUES('node-1','m-1','site-1',1,1700000000000000,NULL,'',NULL,NULL,NULL);
CREATE TABLE notes (
    key         TEXT   NOT NULL PRIMARY KEY,
    run_id      TEXT   NOT NULL,
    barred      BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL
);
INSERT INTO "notes" VALUES('op-1/one/1','op-1',0,'{}',1700000000000000);
CREATE TABLE plans (
    id          TEXT   NOT NULL PRIMARY KEY,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
INSERT INTO "plans" VALUES('plan-x','{"id":"plan-x","display_name":"x","steps":[{"name":"one","timeout_seconds":60,"max_retries":1,"effect":{"kind":"ssh","command":"true","destructive":false}}],"default_for":null,"built_in":false,"on_failure":"KEEP_PHASE"}',1700000000000000);
CREATE TABLE records (
    id          TEXT   NOT NULL PRIMARY KEY,
    kind        TEXT   NOT NULL,
    rack_id     TEXT,
    state       TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
INSERT INTO "records" VALUES('rack-1','rack',NULL,'Created',1,'{"head":{"id":"rack-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1700000000000000,"version":1,"created_at":1700000000000000,"updated_at":1700000000000000},"spec":{"hardware_type":"x","expected":{"machines":1,"switches":1,"power_shelves":1}},"state":{"state":"created"}}',1700000000000000,1700000000000000);
INSERT INTO "records" VALUES('sw-1','switch',NULL,'Created',1,'{"head":{"id":"sw-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1700000000000000,"version":1,"created_at":1700000000000000,"updated_at":1700000000000000},"spec":{"provider":"sim","bmc_endpoint":"10.128.1.1","bmc_credential":"","ssh_endpoint":"","ssh_credential":"","serial":"D1"},"state":{"state":"created"}}',1700000000000000,1700000000000000);
INSERT INTO "records" VALUES('ps-1','power_shelf',NULL,'Initializing',1,'{"head":{"id":"ps-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1700000000000000,"version":1,"created_at":1700000000000000,"updated_at":1700000000000000},"spec":{"provider":"sim","bmc_endpoint":"10.128.1.1","bmc_credential":"","ssh_endpoint":"","ssh_credential":"","serial":"D1"},"state":{"state":"initializing"}}',1700000000000000,1700000000000000);
INSERT INTO "records" VALUES('site-1','site',NULL,'New',1,'{"head":{"id":"site-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1700000000000000,"version":1,"created_at":1700000000000000,"updated_at":1700000000000000},"spec":{"provider":"sim"},"machines":null}',1700000000000000,1700000000000000);
INSERT INTO "records" VALUES('node-1','node',NULL,'active',1,'{"head":{"id":"node-1","labels":{},"rack":null,"slot":null,"active_run":null,"deleted":false,"since":1700000000000000,"version":1,"created_at":1700000000000000,"updated_at":1700000000000000},"state":"active","moved_by":"admin","machine":"m-1","site":"site-1"}',1700000000000000,1700000000000000);
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
, version TEXT NOT NULL DEFAULT '', heartbeat_at BIGINT);
INSERT INTO "replicas" VALUES('one','one#1',1700000000000000,1700000000000000,'0.1.0',1700000000000000);
CREATE TABLE "runs" (
    id          TEXT   NOT NULL PRIMARY KEY,
    machine_id  TEXT   NOT NULL,
    request_id  TEXT   NOT NULL,
    type        TEXT   NOT NULL,
    plan_id     TEXT   NOT NULL,
    spec        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    part_of     TEXT,
    reports_to  TEXT
);
INSERT INTO "runs" VALUES('op-1','m-1','r-1','UPGRADE','plan-x','{"id":"op-1","machine_id":"m-1","request_id":"r-1","run_type":"UPGRADE","plan_id":"plan-x","steps":[{"name":"one","timeout_seconds":60,"max_retries":1,"effect":{"kind":"ssh","command":"true","destructive":false}}],"params":{},"initiator":"alice","parent":null,"on_failure":"KEEP_PHASE","engine":1,"created_at":1700000000000000}',1700000000000000,NULL,NULL);
CREATE TABLE site_answers (
    id          TEXT   NOT NULL PRIMARY KEY,
    answered_at BIGINT NOT NULL
);
INSERT INTO "site_answers" VALUES('site-1',1700000000000000);
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
INSERT INTO "subjects" VALUES('rack-1','rack',NULL,1,0,NULL,NULL,1,1,'Created','Created','',1700000000000000,NULL);
INSERT INTO "subjects" VALUES('sw-1','switch',NULL,1,0,NULL,NULL,1,1,'Created','Created','',1700000000000000,NULL);
INSERT INTO "subjects" VALUES('ps-1','power_shelf',NULL,1,0,NULL,NULL,1,1,'Initializing','Initializing','',1700000000000000,NULL);
INSERT INTO "subjects" VALUES('site-1','site',NULL,1,0,NULL,NULL,1,1,'New','New','',1700000000000000,NULL);
INSERT INTO "subjects" VALUES('node-1','node',NULL,1,0,NULL,NULL,1,1,'active','active','',1700000000000000,NULL);
CREATE TABLE tasks (
    key         TEXT   NOT NULL PRIMARY KEY,
    run_id      TEXT   NOT NULL,
    node_id     TEXT   NOT NULL,
    is_open     BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE INDEX machines_active ON machines (active_run) WHERE active_run IS NOT NULL;
CREATE UNIQUE INDEX subjects_holds ON subjects (holds_machine) WHERE holds_machine IS NOT NULL;
CREATE INDEX subjects_due ON subjects (due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX subjects_owner ON subjects (owner) WHERE owner IS NOT NULL;
CREATE UNIQUE INDEX events_object ON events (object_id, version);
CREATE INDEX subjects_ended ON subjects (ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX subjects_phase ON subjects (phase, id) WHERE ended_at IS NOT NULL;
CREATE INDEX events_aged ON events (ts, seq, kind) WHERE kind <> 'run';
CREATE INDEX machine_labels_machine ON machine_labels (machine_id);
CREATE TRIGGER machines_labels_new AFTER INSERT ON machines BEGIN INSERT INTO machine_labels SELECT key, value, NEW.id FROM json_each(NEW.labels); END;
CREATE TRIGGER machines_labels_changed AFTER UPDATE OF labels ON machines WHEN OLD.labels <> NEW.labels BEGIN DELETE FROM machine_labels WHERE machine_id = OLD.id; INSERT INTO machine_labels SELECT key, value, NEW.id FROM json_each(NEW.labels); END;
CREATE TRIGGER machines_labels_gone AFTER DELETE ON machines BEGIN DELETE FROM machine_labels WHERE machine_id = OLD.id; END;
CREATE INDEX notes_run ON notes (run_id);
CREATE INDEX deployments_run ON deployments (run_id);
CREATE INDEX deployments_open ON deployments (machine_id) WHERE is_open = 1;
CREATE INDEX deployment_macs_key ON deployment_macs (key);
CREATE UNIQUE INDEX runs_request ON runs (machine_id, request_id);
CREATE INDEX runs_machine ON runs (machine_id, created_at, id);
CREATE INDEX runs_part_of ON runs (part_of, id) WHERE part_of IS NOT NULL;
CREATE INDEX machines_rack ON machines (rack_id, id) WHERE rack_id IS NOT NULL;
CREATE INDEX records_kind ON records (kind, id);
CREATE INDEX records_rack ON records (rack_id, kind, id) WHERE rack_id IS NOT NULL;
CREATE UNIQUE INDEX firmware_default ON firmware (hardware_type) WHERE is_default = 1;
CREATE INDEX firmware_applied_device ON firmware_applied (device, at, run_id, step);
CREATE INDEX firmware_applied_at ON firmware_applied (at, run_id, step);
CREATE UNIQUE INDEX nodes_machine ON nodes (machine_id) WHERE live = 1;
CREATE INDEX nodes_site ON nodes (site_id, id) WHERE live = 1;
CREATE UNIQUE INDEX nodes_token ON nodes (token) WHERE token IS NOT NULL;
CREATE UNIQUE INDEX nodes_session ON nodes (session) WHERE session IS NOT NULL;
CREATE INDEX tasks_open ON tasks (node_id, created_at, key) WHERE is_open = 1;
CREATE INDEX tasks_run ON tasks (run_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',1);
PRAGMA user_version = 8;
