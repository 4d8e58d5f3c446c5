-- The program version of a replica and its last heartbeat, by its own clock. A replica of an older
-- version writes neither.
ALTER TABLE replicas ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE replicas ADD COLUMN heartbeat_at BIGINT;
