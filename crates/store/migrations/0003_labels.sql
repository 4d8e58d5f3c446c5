-- Machines by label, so that a rack of a large fleet is found without a scan. Triggers maintain it,
-- so that no writer can forget it.
CREATE TABLE machine_labels (
    key         TEXT   NOT NULL,
    value       TEXT   NOT NULL,
    machine_id  {id}   NOT NULL,
    PRIMARY KEY (key, value, machine_id)
){keyed};
CREATE INDEX machine_labels_machine ON machine_labels (machine_id);
INSERT INTO machine_labels (key, value, machine_id) SELECT l.key, l.value, m.id FROM machines m, {labels_of m} l;
{keep_labels}
