//! Dumps of every schema that has landed, with rows in the form of their time: each is migrated,
//! all its rows can be read, and it can be written.

use crate::harness::{Db, at};
use model::id::{MachineId, NodeId, RunId};
use model::node::Node;
use store::RowKind;

on_both!(every_landed_schema_opens,);

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
