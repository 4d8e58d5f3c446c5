-- Images by name. An image never changes.
CREATE TABLE images (
    name        {id}   NOT NULL PRIMARY KEY,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);

-- Machines that are to boot over the network, by the effect key of the attempt. The token and the
-- session are checksums and cannot be used to log in.
CREATE TABLE deployments (
    key         {id}   NOT NULL PRIMARY KEY,
    run_id      {id}   NOT NULL,
    machine_id  {id}   NOT NULL,
    image       {id}   NOT NULL,
    token       {id}   NOT NULL UNIQUE,
    session     {id}   UNIQUE,
    is_open     BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE INDEX deployments_run ON deployments (run_id);
CREATE INDEX deployments_open ON deployments (machine_id) WHERE is_open = 1;

-- A MAC address belongs to one open deployment at a time.
CREATE TABLE deployment_macs (
    mac         {id}   NOT NULL PRIMARY KEY,
    key         {id}   NOT NULL
);
CREATE INDEX deployment_macs_key ON deployment_macs (key);
