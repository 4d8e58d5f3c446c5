-- Windows and freezes: when operations may start on a part of the fleet. `open` has the weekly
-- windows; `until` and `reason` are those of a freeze.
CREATE TABLE start_rules (
    kind       {id}   NOT NULL,
    name       {id}   NOT NULL,
    filter     TEXT   NOT NULL,
    holds_for  TEXT   NOT NULL,
    open       TEXT   NOT NULL,
    until      BIGINT,
    reason     TEXT   NOT NULL,
    created_by TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    PRIMARY KEY (kind, name)
){keyed};
