-- Rows that cannot be decoded and were set aside, with all their columns. They can be put back.
CREATE TABLE set_aside (
    kind         {id}   NOT NULL,
    id           {id}   NOT NULL,
    problem      TEXT   NOT NULL,
    actor        TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    set_aside_at BIGINT NOT NULL,
    stored       TEXT   NOT NULL,
    PRIMARY KEY (kind, id)
);
