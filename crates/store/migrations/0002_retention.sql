{ids_by_bytes}

-- When a run ended; null while it has not. Clearing away goes by it. It moves only at the end of a run: an index on what
-- every commit moves would make every commit dearer.
ALTER TABLE subjects ADD COLUMN ended_at BIGINT;
UPDATE subjects SET ended_at = updated_at WHERE kind = 'run' AND holds_machine IS NULL;
CREATE INDEX subjects_ended ON subjects (ended_at, id) WHERE ended_at IS NOT NULL;

-- Lists of runs that have ended, by how they ended, newest first.
CREATE INDEX subjects_phase ON subjects (phase, id) WHERE ended_at IS NOT NULL;

-- The events of a run go with the run. Those of everything else go by their age.
CREATE INDEX events_aged ON events (ts, seq, kind) WHERE kind <> 'run';

-- The latest runs of a machine, in the very order they are asked for.
DROP INDEX runs_machine;
CREATE INDEX runs_machine ON runs (machine_id, created_at, id);

-- The newest event of each kind that has been cleared away: who has not read up to it has missed something.
CREATE TABLE removed (
    kind        TEXT   NOT NULL PRIMARY KEY,
    tx          BIGINT NOT NULL,
    seq         BIGINT NOT NULL
);
