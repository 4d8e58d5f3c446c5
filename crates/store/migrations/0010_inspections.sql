-- The hardware of each machine as its last inspection found it. It informs and decides nothing.
CREATE TABLE inspections (
    machine_id   {id}   NOT NULL PRIMARY KEY REFERENCES machines (id) ON DELETE CASCADE,
    inspected_at BIGINT NOT NULL,
    body         TEXT   NOT NULL
);
