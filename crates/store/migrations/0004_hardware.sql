-- What a provider remembers of an order, by its key. A device remembers nothing of ours, so what was seen before it
-- was touched is written down first. A key that is barred never begins.
CREATE TABLE notes (
    key         {id}   NOT NULL PRIMARY KEY,
    run_id      {id}   NOT NULL,
    barred      BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE INDEX notes_run ON notes (run_id);

-- Secrets, sealed before they come here. The version moves with every change, so that who was refused with an older one may
-- try again.
CREATE TABLE credentials (
    name        {id}   NOT NULL PRIMARY KEY,
    kind        TEXT   NOT NULL,
    login       TEXT   NOT NULL,
    sealed      {bytes} NOT NULL,
    version     BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);

-- The certificate or host key by which a device was known first.
CREATE TABLE identities (
    peer        {id}   NOT NULL PRIMARY KEY,
    identity    TEXT   NOT NULL,
    first_seen  BIGINT NOT NULL
);

-- Logins that a device refused. Nobody tries the same one there again: an account that is locked is worse than a step that
-- failed.
CREATE TABLE lockouts (
    peer        {id}   NOT NULL PRIMARY KEY,
    credential  TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    said        TEXT   NOT NULL,
    since       BIGINT NOT NULL
);
