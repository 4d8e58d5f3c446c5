-- One row of each kind whose JSON is cut off. The machine m-1 exists. The tests of the binary use it
-- too.
INSERT INTO machines (id, version, phase, holds, active_run, provider, labels, body, created_at, updated_at)
    VALUES ('bad-machine', 1, 'READY', 0, NULL, 'sim', '{}', '{"spec":', 0, 0);
INSERT INTO runs (id, machine_id, request_id, type, plan_id, spec, created_at)
    VALUES ('op-bad', 'm-1', 'bad', 'REBOOT', 'p', '{', 0);
INSERT INTO plans (id, body, created_at) VALUES ('plan-bad', '{', 0);
INSERT INTO records (id, kind, rack_id, state, version, body, created_at, updated_at) VALUES
    ('rack-bad', 'rack', NULL, 'Ready', 1, '{', 0, 0),
    ('sw-bad', 'switch', NULL, 'Ready', 1, '{', 0, 0),
    ('ps-bad', 'power_shelf', NULL, 'Ready', 1, '{', 0, 0),
    ('host:m-1', 'host', NULL, 'Ready', 1, '{', 0, 0),
    ('node-bad', 'node', NULL, 'active', 1, '{', 0, 0),
    ('site-bad', 'site', NULL, 'active', 1, '{', 0, 0);
INSERT INTO nodes (id, machine_id, site_id, live, problems) VALUES ('node-bad', 'm-0', 'site-bad', 1, '');
INSERT INTO subjects (id, kind, version, epoch, wakes_asked, wakes_handled, phase, workflow, state, updated_at) VALUES
    ('op-bad', 'run', 1, 0, 0, 0, 'FAILED', 'failed', '{', 0),
    ('rack-bad', 'rack', 1, 0, 0, 0, 'Ready', 'Ready', '', 0),
    ('sw-bad', 'switch', 1, 0, 0, 0, 'Ready', 'Ready', '', 0),
    ('ps-bad', 'power_shelf', 1, 0, 0, 0, 'Ready', 'Ready', '', 0),
    ('host:m-1', 'host', 1, 0, 0, 0, 'Ready', 'Ready', '', 0),
    ('node-bad', 'node', 1, 0, 0, 0, 'active', 'active', '', 0),
    ('site-bad', 'site', 1, 0, 0, 0, 'active', 'active', '', 0);
INSERT INTO images (name, body, created_at) VALUES ('image-bad', '{', 0);
INSERT INTO firmware (id, hardware_type, is_default, available, body, created_at, version)
    VALUES ('fw-bad', 'x', 0, 1, '{', 0, 1);
INSERT INTO health (object_id, source, kind, allocations, changes, other, suppressed, body, updated_at)
    VALUES ('m-1', 'bad', 'machine', 0, 0, 0, 0, '{', 0);
INSERT INTO deployments (key, run_id, machine_id, image, token, session, is_open, version, body, updated_at)
    VALUES ('op-bad/one/1', 'op-bad', 'm-1', 'image-bad', 't', NULL, 0, 1, '{', 0);
INSERT INTO tasks (key, run_id, node_id, is_open, version, body, created_at)
    VALUES ('op-bad/two/1', 'op-bad', 'node-bad', 0, 1, '{', 0);
INSERT INTO inspections (machine_id, inspected_at, body) VALUES ('m-1', 0, '{');
