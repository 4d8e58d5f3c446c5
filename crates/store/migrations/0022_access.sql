-- Access control. A token is stored as the SHA-256 of its secret, in hexadecimal.
CREATE TABLE api_tokens (
    id          {id}   NOT NULL PRIMARY KEY,
    hash        TEXT   NOT NULL UNIQUE,
    kind        TEXT   NOT NULL,
    parent      TEXT   NOT NULL,
    user_name   TEXT   NOT NULL,
    description TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    created_by  TEXT   NOT NULL,
    expires_at  BIGINT,
    revoked_at  BIGINT
);

-- Roles beside the built-in ones: the words of their permissions, separated by blanks.
CREATE TABLE roles (
    name        {id} NOT NULL PRIMARY KEY,
    permissions TEXT NOT NULL
);

CREATE TABLE role_bindings (
    id         {id}   NOT NULL PRIMARY KEY,
    subject    TEXT   NOT NULL,
    role       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT   NOT NULL
);

-- Raised by every change of the tables above, so that a replica sees whether its copy is current.
CREATE TABLE access_version (version BIGINT NOT NULL);
INSERT INTO access_version (version) VALUES (1);
