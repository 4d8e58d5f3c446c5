-- Runs act on targets other than machines now: machine_id holds the key of any target, so it has no
-- foreign key. part_of (parent run) and reports_to (waiting record) delay the deletion of a run.
CREATE TABLE runs_on_anything (
    id          {id}   NOT NULL PRIMARY KEY,
    machine_id  {id}   NOT NULL,
    request_id  TEXT   NOT NULL,
    type        TEXT   NOT NULL,
    plan_id     TEXT   NOT NULL,
    spec        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    part_of     {id},
    reports_to  {id}
);
INSERT INTO runs_on_anything (id, machine_id, request_id, type, plan_id, spec, created_at)
    SELECT id, machine_id, request_id, type, plan_id, spec, created_at FROM runs;
DROP TABLE runs;
ALTER TABLE runs_on_anything RENAME TO runs;
CREATE UNIQUE INDEX runs_request ON runs (machine_id, request_id);
CREATE INDEX runs_machine ON runs (machine_id, created_at, id);
CREATE INDEX runs_part_of ON runs (part_of, id) WHERE part_of IS NOT NULL;

ALTER TABLE machines ADD COLUMN rack_id {id};
CREATE INDEX machines_rack ON machines (rack_id, id) WHERE rack_id IS NOT NULL;

-- Every record with a lifecycle other than runs: racks, switches, power shelves, hosts. Its queue
-- row is in subjects, under the same id.
CREATE TABLE records (
    id          {id}   NOT NULL PRIMARY KEY,
    kind        {id}   NOT NULL,
    rack_id     {id},
    state       TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE INDEX records_kind ON records (kind, id);
CREATE INDEX records_rack ON records (rack_id, kind, id) WHERE rack_id IS NOT NULL;

-- Firmware records by id, and the default of each hardware type.
CREATE TABLE firmware (
    id            {id}   NOT NULL PRIMARY KEY,
    hardware_type {id}   NOT NULL,
    is_default    BIGINT NOT NULL,
    available     BIGINT NOT NULL,
    body          TEXT   NOT NULL,
    created_at    BIGINT NOT NULL
);
CREATE UNIQUE INDEX firmware_default ON firmware (hardware_type) WHERE is_default = 1;

-- Firmware applied to devices, by step and run. Written in the commit that ends the step.
CREATE TABLE firmware_applied (
    run_id      {id}   NOT NULL,
    step        TEXT   NOT NULL,
    device      {id}   NOT NULL,
    component   TEXT   NOT NULL,
    previous    TEXT   NOT NULL,
    version     TEXT   NOT NULL,
    changed     BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    PRIMARY KEY (run_id, step)
);
CREATE INDEX firmware_applied_device ON firmware_applied (device, at, run_id, step);
CREATE INDEX firmware_applied_at ON firmware_applied (at, run_id, step);

-- Health reports by object and source, with counts of their alerts for the metrics.
CREATE TABLE health (
    object_id   {id}   NOT NULL,
    source      {id}   NOT NULL,
    kind        {id}   NOT NULL,
    allocations BIGINT NOT NULL,
    changes     BIGINT NOT NULL,
    other       BIGINT NOT NULL,
    suppressed  BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (object_id, source)
);
