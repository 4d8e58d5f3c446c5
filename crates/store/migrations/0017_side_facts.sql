-- Facts that inform people and decide nothing; they are written outside every transition.

-- The durations of the last successful executions of a step on a hardware model.
CREATE TABLE step_durations (
    step        TEXT   NOT NULL,
    model       TEXT   NOT NULL,
    ended_at    BIGINT NOT NULL,
    run_id      {id}   NOT NULL,
    duration_ms BIGINT NOT NULL,
    PRIMARY KEY (step, model, ended_at, run_id)
);

-- The last refused request on each object.
CREATE TABLE refused_requests (
    object_id  {id}   NOT NULL PRIMARY KEY,
    refused_at BIGINT NOT NULL,
    actor      TEXT   NOT NULL,
    request    TEXT   NOT NULL,
    reason     TEXT   NOT NULL,
    message    TEXT   NOT NULL
);
