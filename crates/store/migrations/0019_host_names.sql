-- A machine whose id cannot be the name of a node has the host name of its id in its cluster. Of
-- machines that share one, the first by id is renamed unless another machine has the name; the
-- others keep a name that no node has.
UPDATE node_names SET name = lower(replace(replace(node_names.name, '_', '-'), '.', '-'))
    WHERE name = machine_id AND (name <> lower(name) OR name <> replace(name, '_', '-'))
    AND machine_id = (SELECT MIN(same.machine_id) FROM node_names same
        WHERE same.cluster = node_names.cluster
        AND lower(replace(replace(same.name, '_', '-'), '.', '-')) = lower(replace(replace(node_names.name, '_', '-'), '.', '-')))
    AND NOT EXISTS (SELECT 1 FROM node_names taken WHERE taken.cluster = node_names.cluster
        AND taken.name = lower(replace(replace(node_names.name, '_', '-'), '.', '-')));
