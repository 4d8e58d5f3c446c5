-- Checkpoints of provider calls, by effect key. A device does not know effect keys, so what was
-- observed before it was changed is recorded first. A barred key never begins.
CREATE TABLE notes (
    key         {id}   NOT NULL PRIMARY KEY,
    run_id      {id}   NOT NULL,
    barred      BIGINT NOT NULL,
    body        TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE INDEX notes_run ON notes (run_id);

-- Encrypted secrets. Every change raises the version, which ends a lockout of an older one.
CREATE TABLE credentials (
    name        {id}   NOT NULL PRIMARY KEY,
    kind        TEXT   NOT NULL,
    login       TEXT   NOT NULL,
    sealed      {bytes} NOT NULL,
    version     BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);

-- The pinned certificate or host key of a device.
CREATE TABLE identities (
    peer        {id}   NOT NULL PRIMARY KEY,
    identity    TEXT   NOT NULL,
    first_seen  BIGINT NOT NULL
);

-- Logins that a device refused. They are not repeated, so that the device does not lock the
-- account.
CREATE TABLE lockouts (
    peer        {id}   NOT NULL PRIMARY KEY,
    credential  TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    said        TEXT   NOT NULL,
    since       BIGINT NOT NULL
);
