-- A pinned identity has a version, and its changes are in the history.
ALTER TABLE identities ADD COLUMN version BIGINT NOT NULL DEFAULT 1;
