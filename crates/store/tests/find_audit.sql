-- Makes the audit log writable again.
ALTER TABLE lost_audit_entries RENAME TO audit_entries;
