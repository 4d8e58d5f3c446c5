{ids_by_bytes}

-- The end of a run, for retention; null while it is active. It is indexed because it changes only
-- once: an index on a column that every commit changes would slow down every commit.
ALTER TABLE subjects ADD COLUMN ended_at BIGINT;
UPDATE subjects SET ended_at = updated_at WHERE kind = 'run' AND holds_machine IS NULL;
CREATE INDEX subjects_ended ON subjects (ended_at, id) WHERE ended_at IS NOT NULL;

-- Lists of ended runs by phase, newest first.
CREATE INDEX subjects_phase ON subjects (phase, id) WHERE ended_at IS NOT NULL;

-- Events of a run are deleted with the run, all others by their age.
CREATE INDEX events_aged ON events (ts, seq, kind) WHERE kind <> 'run';

-- The latest runs of a machine, in the order of the query.
DROP INDEX runs_machine;
CREATE INDEX runs_machine ON runs (machine_id, created_at, id);

-- The newest deleted event of each kind. A watch at an older cursor has missed events.
CREATE TABLE removed (
    kind        TEXT   NOT NULL PRIMARY KEY,
    tx          BIGINT NOT NULL,
    seq         BIGINT NOT NULL
);
