-- The names of machines in their Kubernetes clusters: an index of the specs, in which a name belongs
-- to one machine. Of machines that shared a name before, the first by id is in it.
CREATE TABLE node_names (
    cluster     TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    machine_id  {id}   NOT NULL,
    PRIMARY KEY (cluster, name)
){keyed};
CREATE INDEX node_names_machine ON node_names (machine_id);
INSERT INTO node_names (cluster, name, machine_id)
    SELECT n.cluster, n.name, MIN(n.id) FROM (
        SELECT id, {cluster_of machines} AS cluster,
            COALESCE(NULLIF({node_name_of machines}, ''), id) AS name FROM machines) n
    WHERE n.cluster <> '' GROUP BY n.cluster, n.name;
