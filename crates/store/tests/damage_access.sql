-- A binding whose subject a newer farrier may know, as another replica would write it.
INSERT INTO role_bindings (id, subject, role, created_at, created_by, selector) VALUES ('rb-bad', 'planet:mars', 'admin', 0, 'x', '');
UPDATE access_version SET version = version + 1;
