//! Dumps of every schema that has landed, with rows in the form of their time: each is migrated,
//! all its rows can be read, and it can be written.

use crate::harness::{Db, at};
use model::filter::Filter;
use model::id::{MachineId, NodeId, RunId};
use model::node::Node;
use model::plan::RunType;
use model::run::Run;
use store::RowKind;

on_both!(
    every_landed_schema_opens,
    a_database_that_a_landed_farrier_wrote_opens,
    ids_that_are_no_node_names_are_indexed_by_their_host_names,
);

/// The dump of one schema version on SQLite and on PostgreSQL.
macro_rules! landed {
    ($version:literal) => {
        (
            include_str!(concat!("../landed/sqlite_", $version, ".sql")),
            include_str!(concat!("../landed/postgres_", $version, ".sql")),
        )
    };
}

const LANDED: [(&str, &str); 12] = [
    landed!("01"),
    landed!("02"),
    landed!("03"),
    landed!("04"),
    landed!("05"),
    landed!("06"),
    landed!("07"),
    landed!("08"),
    landed!("09"),
    landed!("10"),
    landed!("11"),
    landed!("12"),
];

async fn every_landed_schema_opens(db: Db) {
    for (version, (on_sqlite, on_postgres)) in (1..).zip(LANDED) {
        let db = db.load_dump(version, on_sqlite, on_postgres).await;
        for kind in RowKind::ALL {
            let rows = db.read(tx!([], |tx| tx.check_rows(kind, "").await)).await.unwrap();
            assert_eq!(rows.unreadable, [], "schema {version}");
        }
        let machine = db.machine(&MachineId::trusted("m-1")).await;
        assert_eq!(machine.spec.serial, "S7", "schema {version}");
        assert_eq!(machine.labels["env"], "prod", "schema {version}");
        let run = db.run(&RunId::trusted("op-1")).await;
        assert!(run.ended(), "schema {version}");
        let log = tx!([], |tx| tx.read_log(&RunId::trusted("op-1"), 0, 9).await);
        assert_eq!(db.read(log).await.unwrap()[0].data, b"hi", "schema {version}");
        let node = NodeId::trusted("node-1");
        let node = db.read(tx!([node], |tx| tx.record::<Node>(node.as_str()).await)).await;
        assert_eq!(node.unwrap().is_some(), version >= 7, "schema {version}");
        db.add_run("op-new").await;
        assert_eq!(db.claim("a", at(100), 9).await.len(), 1, "schema {version}");
    }
}

/// Not made by hand: a server of that version wrote it, with a rack, a reimage and a node.
async fn a_database_that_a_landed_farrier_wrote_opens(db: Db) {
    let (on_sqlite, on_postgres) = landed!("17");
    let db = db.load_dump(17, on_sqlite, on_postgres).await;
    let mut checked = 0;
    for kind in RowKind::ALL {
        let rows = db.read(tx!([], |tx| tx.check_rows(kind, "").await)).await.unwrap();
        assert_eq!(rows.unreadable, []);
        checked += rows.checked;
    }
    assert!(checked > 20, "{checked} rows");
    let machine = db.machine(&MachineId::trusted("m-1")).await;
    assert_eq!((machine.spec.serial.as_str(), machine.labels["env"].as_str()), ("S7", "prod"));
    let page = db.read(tx!([], |tx| tx.runs(&Filter::default(), None, 99).await)).await.unwrap();
    assert!(!page.runs.is_empty() && page.runs.iter().all(Run::ended), "{page:?}");
    let reimage = page.runs.iter().find(|run| run.spec.run_type == RunType::Reimage).unwrap();
    let id = reimage.spec.id.clone();
    let log = db.read(tx!([id], |tx| tx.read_log(&id, 0, 9).await)).await.unwrap();
    assert!(!log.is_empty());
    db.add_run("op-new").await;
    let claimed = db.claim("a", at(1_000_000_000), 99).await;
    assert!(claimed.iter().any(|one| one.id.as_str() == "op-new"), "{claimed:?}");
}

/// Schema 16 indexed the bare id. A name that another machine has is not taken from it.
async fn ids_that_are_no_node_names_are_indexed_by_their_host_names(db: Db) {
    let names = [("GPU_07", "GPU_07"), ("GPU_08", "GPU_08"), ("gpu-08", "gpu-08"), ("A_1", "web")];
    let rows = names.map(|(id, name)| format!("('c', '{name}', '{id}')")).join(", ");
    let insert = format!("INSERT INTO node_names (cluster, name, machine_id) VALUES {rows};");
    let (on_sqlite, on_postgres) = landed!("17");
    let db = db
        .load_dump(17, &format!("{on_sqlite}\n{insert}"), &format!("{on_postgres}\n{insert}"))
        .await;
    for (id, expected) in
        [("GPU_07", "gpu-07"), ("GPU_08", "GPU_08"), ("gpu-08", "gpu-08"), ("A_1", "web")]
    {
        let id = MachineId::trusted(id);
        let found = db.read(tx!([id], |tx| tx.node_name_of(&id).await)).await.unwrap();
        assert_eq!(found.map(|found| found.name).as_deref(), Some(expected));
    }
}
