-- The targets of rollouts: one row for each machine, at its place in the order of the rollout.
-- `run` is the run of the stage; `due_at` is null while only the end of that run matters.
CREATE TABLE rollout_targets (
    rollout       {id}   NOT NULL,
    position      BIGINT NOT NULL,
    target        {id}   NOT NULL,
    wave          BIGINT NOT NULL,
    state         {id}   NOT NULL,
    stage         TEXT   NOT NULL,
    attempt       BIGINT NOT NULL,
    run           {id},
    fault         TEXT   NOT NULL,
    reason        TEXT   NOT NULL,
    maintenance   TEXT   NOT NULL,
    since         BIGINT NOT NULL,
    refused_since BIGINT,
    due_at        BIGINT,
    PRIMARY KEY (rollout, position)
){keyed};
CREATE UNIQUE INDEX rollout_targets_target ON rollout_targets (rollout, target);
CREATE INDEX rollout_targets_state ON rollout_targets (rollout, state, position);
CREATE INDEX rollout_targets_due ON rollout_targets (rollout, state, due_at);
CREATE INDEX rollout_targets_machine ON rollout_targets (target, state, rollout);
-- Two rollouts never work on one machine at the same time.
CREATE UNIQUE INDEX rollout_targets_working ON rollout_targets (target) WHERE state = 'active';

-- The rollout that a request has created.
CREATE TABLE rollout_requests (
    request_id TEXT NOT NULL PRIMARY KEY,
    rollout    {id} NOT NULL
);
CREATE INDEX rollout_requests_rollout ON rollout_requests (rollout);
