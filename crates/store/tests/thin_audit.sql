-- Removes an entry from the middle of the audit log, as an attacker with access to the database can.
DELETE FROM audit_entries WHERE position = 2;
