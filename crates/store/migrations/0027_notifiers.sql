-- Receivers of notices. `position` is the last event whose notices were all sent, or are dead
-- letters; `delivery` is a JSON object with the state of the next one.
CREATE TABLE notifiers (
    name         {id}   NOT NULL PRIMARY KEY,
    spec         TEXT   NOT NULL,
    paused       BIGINT NOT NULL,
    version      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    position_tx  BIGINT NOT NULL,
    position_seq BIGINT NOT NULL,
    delivery     TEXT   NOT NULL
);

-- Notices that a receiver did not accept. `notice` is a JSON object.
CREATE TABLE dead_letters (
    seq       {serial},
    notifier  {id}   NOT NULL,
    notice    TEXT   NOT NULL,
    attempts  BIGINT NOT NULL,
    problem   TEXT   NOT NULL,
    failed_at BIGINT NOT NULL,
    replaying BIGINT NOT NULL
);
CREATE INDEX dead_letters_of ON dead_letters (notifier, seq);
CREATE INDEX dead_letters_replaying ON dead_letters (notifier, seq) WHERE replaying = 1;
