-- Which requests need a second person: the words of permissions, separated by blanks.
CREATE TABLE approval_policy (classes TEXT NOT NULL, lifetime_s BIGINT NOT NULL);
INSERT INTO approval_policy (classes, lifetime_s) VALUES ('', 3600);

-- Requests that need or needed a second person. `targets`, `plan` and `operations` are JSON lists.
CREATE TABLE approvals (
    id          {id}   NOT NULL PRIMARY KEY,
    requester   TEXT   NOT NULL,
    request     TEXT   NOT NULL,
    request_id  TEXT   NOT NULL,
    targets     TEXT   NOT NULL,
    permissions TEXT   NOT NULL,
    plan        TEXT   NOT NULL,
    digest      TEXT   NOT NULL,
    state       TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL,
    decided_by  TEXT   NOT NULL,
    decided_at  BIGINT,
    comment     TEXT   NOT NULL,
    reason      TEXT   NOT NULL,
    operations  TEXT   NOT NULL
);
-- A request that waits is not filed twice.
CREATE UNIQUE INDEX approvals_pending ON approvals (requester, digest) WHERE state = 'pending';
CREATE INDEX approvals_by_request ON approvals (requester, request_id);
CREATE INDEX approvals_open ON approvals (id) WHERE state IN ('pending', 'approved', 'break-glass');
