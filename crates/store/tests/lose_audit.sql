-- Makes the audit log unwritable.
ALTER TABLE audit_entries RENAME TO lost_audit_entries;
