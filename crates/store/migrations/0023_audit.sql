-- The audit log. `reason` is empty for an accepted request. An entry that is sealed has its place in
-- the chain; rows are never changed otherwise, and retention leaves them alone.
CREATE TABLE audit_entries (
    seq          {serial},
    at           BIGINT NOT NULL,
    user_name    TEXT   NOT NULL,
    method       TEXT   NOT NULL,
    token_id     TEXT   NOT NULL,
    peer         TEXT   NOT NULL,
    call_name    TEXT   NOT NULL,
    objects      TEXT   NOT NULL,
    reference    TEXT   NOT NULL,
    remark       TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    occurrences  BIGINT NOT NULL,
    operation_id TEXT   NOT NULL,
    position     BIGINT,
    seal         TEXT
);
CREATE INDEX audit_unsealed ON audit_entries (seq) WHERE position IS NULL;
CREATE UNIQUE INDEX audit_chain ON audit_entries (position) WHERE position IS NOT NULL;

-- The last entry of the chain.
CREATE TABLE audit_head (position BIGINT NOT NULL, seal TEXT NOT NULL);
INSERT INTO audit_head (position, seal) VALUES (0, '');
