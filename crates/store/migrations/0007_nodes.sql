-- What moves often about a node, or is found by something else than its id: when its agent was heard, and what that agent shows. The
-- node itself is a record. A machine has one living node at a time.
CREATE TABLE nodes (
    id          {id}   NOT NULL PRIMARY KEY,
    machine_id  {id}   NOT NULL,
    site_id     {id},
    live        BIGINT NOT NULL,
    heard_at    BIGINT,
    -- When it went offline for its silence, until it is heard again.
    lost_at     BIGINT,
    problems    TEXT   NOT NULL,
    -- Checksums: nobody finds a token or a session here.
    token       {id},
    ticket      TEXT,
    session     {id}
);
CREATE UNIQUE INDEX nodes_machine ON nodes (machine_id) WHERE live = 1;
CREATE INDEX nodes_site ON nodes (site_id, id) WHERE live = 1;
CREATE UNIQUE INDEX nodes_token ON nodes (token) WHERE token IS NOT NULL;
CREATE UNIQUE INDEX nodes_session ON nodes (session) WHERE session IS NOT NULL;

-- When each site last answered. It is no change of the site, and has no history.
CREATE TABLE site_answers (
    id          {id}   NOT NULL PRIMARY KEY,
    answered_at BIGINT NOT NULL
);

-- What agents are asked to do, by the attempt that wants it.
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
