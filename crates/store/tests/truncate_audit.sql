-- Removes the end of the audit log.
DELETE FROM audit_entries WHERE position >= 3;
