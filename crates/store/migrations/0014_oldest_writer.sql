-- The oldest schema version whose farrier may still write. Every write transaction checks it, and
-- every migration may raise it.
CREATE TABLE oldest_writer (
    version     BIGINT NOT NULL
);
INSERT INTO oldest_writer (version) VALUES (0);
