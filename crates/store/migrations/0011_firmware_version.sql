-- A firmware record has a version, which is that of its last event.
ALTER TABLE firmware ADD COLUMN version BIGINT NOT NULL DEFAULT 1;
UPDATE firmware SET version = COALESCE(
    (SELECT MAX(events.version) FROM events WHERE events.object_id = 'firmware/' || firmware.id), 1);
