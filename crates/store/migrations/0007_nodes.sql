-- The data of a node that changes often or is a lookup key: heartbeats, tokens, sessions. The node
-- itself is a record. A machine has at most one live node.
CREATE TABLE nodes (
    id          {id}   NOT NULL PRIMARY KEY,
    machine_id  {id}   NOT NULL,
    site_id     {id},
    live        BIGINT NOT NULL,
    heard_at    BIGINT,
    -- When the node went offline because of its silence; null after the next heartbeat.
    lost_at     BIGINT,
    problems    TEXT   NOT NULL,
    -- Checksums of the enrollment token and of the session.
    token       {id},
    ticket      TEXT,
    session     {id}
);
CREATE UNIQUE INDEX nodes_machine ON nodes (machine_id) WHERE live = 1;
CREATE INDEX nodes_site ON nodes (site_id, id) WHERE live = 1;
CREATE UNIQUE INDEX nodes_token ON nodes (token) WHERE token IS NOT NULL;
CREATE UNIQUE INDEX nodes_session ON nodes (session) WHERE session IS NOT NULL;

-- The last answer of each site. It is not a change of the site and has no history.
CREATE TABLE site_answers (
    id          {id}   NOT NULL PRIMARY KEY,
    answered_at BIGINT NOT NULL
);

-- Tasks of agents, by the effect key of the attempt.
CREATE TABLE tasks (
    key         {id}   NOT NULL PRIMARY KEY,
    run_id      {id}   NOT NULL,
    node_id     {id}   NOT NULL,
    is_open     BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE INDEX tasks_open ON tasks (node_id, created_at, key) WHERE is_open = 1;
CREATE INDEX tasks_run ON tasks (run_id);
