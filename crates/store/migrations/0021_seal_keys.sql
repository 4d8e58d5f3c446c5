-- The keys that seal secrets and derive tokens, each encrypted with a master key that is not in the
-- database. One key of each purpose is current; the others only open what they have sealed.
CREATE TABLE seal_keys (
    id          {id}    NOT NULL PRIMARY KEY,
    purpose     TEXT    NOT NULL,
    master      TEXT    NOT NULL,
    wrapped     {bytes} NOT NULL,
    is_current  BIGINT  NOT NULL,
    created_at  BIGINT  NOT NULL
);
CREATE UNIQUE INDEX seal_keys_current ON seal_keys (purpose) WHERE is_current = 1;

-- The master keys that each replica has.
CREATE TABLE seal_masters (
    replica     TEXT    NOT NULL,
    master      TEXT    NOT NULL,
    PRIMARY KEY (replica, master)
);

-- Null: sealed with a master key itself, by an older farrier.
ALTER TABLE credentials ADD COLUMN key_id TEXT;
