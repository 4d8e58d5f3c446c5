-- Cuts the end of the audit log and its recorded end, as an attacker with the database would while
-- no server runs.
DELETE FROM audit_entries WHERE position IS NULL OR position > 3;
UPDATE audit_head SET position = 3, seal = (SELECT seal FROM audit_entries WHERE position = 3);
