//! Opening: an old schema is migrated, a newer one is refused, and an error names its cause.

use crate::harness::{Db, REVERT_RACKS, REVERT_SINCE_13, at, event, execute_on_postgres, machine};
use model::run::Workflow;
use store::{EndedRunPosition, Options, RowKind, Store, StoreError};

on_both!(
    rows_survive_reopening,
    an_older_schema_is_brought_up_to_date,
    a_body_that_is_no_json_does_not_stop_a_migration,
    a_newer_schema_is_refused,
    a_newer_schema_that_admits_this_farrier_is_used,
    an_outdated_farrier_stops_writing,
);

async fn rows_survive_reopening(db: Db) {
    let run = db.add_run("op-1").await;
    let run = db.update_unclaimed(&run, Workflow::Running).await;
    let claimed = db.claim("a", at(100), 1).await;
    let events = db.events(3).await;
    let db = db.open_another().await;
    assert_eq!(db.run(&run.spec.id).await, run);
    let again = db.events(3).await;
    assert!(events.iter().zip(&again).all(|(one, other)| one.cursor == other.cursor));
    let claim = db.read(tx!([], |tx| tx.claimed_by("a").await)).await.unwrap();
    assert_eq!(claim, [(run.spec.id.object(), claimed[0].epoch)]);
}

/// Starts from the first schema, which has no `ended_at`.
async fn an_older_schema_is_brought_up_to_date(db: Db) {
    db.add_run("op-1").await;
    let done = db.add_run("op-2").await;
    db.update_unclaimed(&done, Workflow::Completed).await;
    let back = "DROP INDEX subjects_ended; DROP INDEX subjects_phase; DROP INDEX events_aged; \
                DROP TABLE removed; ALTER TABLE subjects DROP COLUMN ended_at; \
                DROP TABLE machine_labels; DROP TABLE notes; DROP TABLE credentials; \
                DROP TABLE identities; DROP TABLE lockouts; DROP TABLE images; \
                DROP TABLE deployments; DROP TABLE deployment_macs;";
    let on_sqlite = format!(
        "{REVERT_SINCE_13} {REVERT_RACKS} {back} DROP TRIGGER machines_labels_new; DROP TRIGGER machines_labels_changed; \
         DROP TRIGGER machines_labels_gone; PRAGMA user_version = 1"
    );
    let on_postgres = format!(
        "{REVERT_SINCE_13} {REVERT_RACKS} {back} DROP FUNCTION keep_machine_labels() CASCADE; \
         DELETE FROM schema_version WHERE version > 1"
    );
    db.execute_sql(&on_sqlite, &on_postgres).await;
    let db = db.open_another().await;
    let ended = tx!([], |tx| tx.ended_runs(at(100), &EndedRunPosition::default(), 9).await);
    let ended = db.read(ended).await.unwrap();
    let ended: Vec<_> = ended.iter().map(|run| (run.id.as_str(), run.at)).collect();
    assert_eq!(ended, [("op-2", at(50))]);
}

/// `farrier db check` finds the row afterwards.
async fn a_body_that_is_no_json_does_not_stop_a_migration(db: Db) {
    db.add_run("op-1").await;
    let back = format!("{REVERT_SINCE_13} UPDATE machines SET body = '{{\"spec\":';");
    let on_sqlite = format!("{back} PRAGMA user_version = 12");
    let on_postgres = format!("{back} DELETE FROM schema_version WHERE version > 12");
    db.execute_sql(&on_sqlite, &on_postgres).await;
    let db = db.open_another().await;
    let row = db.read(tx!([], |tx| tx.unreadable_row(RowKind::Machine, "m-op-1").await)).await;
    assert!(row.unwrap().is_some());
}

/// Migrates the database as a newer farrier would, which excludes writers before this version.
async fn migrate_to_99(db: &Db, oldest_writer: i64) {
    let fence = format!("UPDATE oldest_writer SET version = {oldest_writer}");
    let on_sqlite = format!("{fence}; PRAGMA user_version = 99");
    let on_postgres = format!("{fence}; INSERT INTO schema_version (version) VALUES (99)");
    db.execute_sql(&on_sqlite, &on_postgres).await;
}

/// A migration that only expands the schema: this farrier writes, and may start again.
async fn a_newer_schema_that_admits_this_farrier_is_used(db: Db) {
    migrate_to_99(&db, 11).await;
    db.add_machine("m-1").await;
    let again = db.open_another().await;
    again.add_machine("m-2").await;
    assert_eq!((db.store.outdated(), again.store.outdated()), (None, None));
}

/// The running farrier cannot write from the commit of the migration on. It still reads.
async fn an_outdated_farrier_stops_writing(db: Db) {
    let id = db.add_machine("m-1").await.id;
    migrate_to_99(&db, 99).await;
    let more = machine("m-2");
    for _ in 0..2 {
        let write = tx!([more], |tx| tx.insert_machine(&more, &event()));
        let message = unavailable_message(db.write(write).await);
        assert!(message.contains("too old to write"), "{message}");
        assert!(message.contains("start the newer farrier"), "{message}");
    }
    let read_first = tx!([id], |tx| tx.machine(&id).await.map(drop));
    let message = unavailable_message(db.write(read_first).await);
    assert!(message.contains("too old to write"), "{message}");
    assert_eq!(db.machine(&id).await.version, 1);
    assert!(db.store.outdated().is_some_and(|why| why.contains("at least 99")));
    let machines = db.read(tx!([], |tx| tx.count_machines().await)).await;
    assert_eq!(machines, Ok(1));
}

async fn a_newer_schema_is_refused(db: Db) {
    migrate_to_99(&db, 99).await;
    match Store::open(&db.options).await.map(drop) {
        Err(StoreError::Unavailable(message)) => {
            assert!(
                message.contains("schema version 99") && message.contains("newer"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// The text of an Unavailable error.
fn unavailable_message(result: Result<(), StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable(message)) => message,
        other => panic!("{other:?}"),
    }
}

async fn open(options: Options) -> Result<(), StoreError> {
    Store::open(&options).await.map(drop)
}

#[tokio::test]
async fn a_missing_or_forbidden_directory_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Options::Sqlite { path: folder.path().join("no/such/folder/farrier.db") };
    assert!(unavailable_message(open(missing).await).contains("unable to open"));
    let itself = Options::Sqlite { path: folder.path().to_path_buf() };
    assert!(unavailable_message(open(itself).await).contains("unable to open"));
    // Not even root can create files there.
    let forbidden = Options::Sqlite { path: "/sys/farrier.db".into() };
    assert!(!unavailable_message(open(forbidden).await).is_empty());
}

#[tokio::test]
async fn a_file_that_is_no_database_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("farrier.db");
    std::fs::write(&path, "not a database, but long enough to be read as one".repeat(100)).unwrap();
    let message = unavailable_message(open(Options::Sqlite { path: path.clone() }).await);
    assert!(message.contains("not a database"), "{message}");
    assert!(std::fs::read_to_string(path).unwrap().starts_with("not a database"));
}

#[tokio::test]
async fn a_read_only_database_is_read_and_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("farrier.db");
    let options = Options::Sqlite { path: path.clone() };
    let db = Db { store: Store::open(&options).await.unwrap(), options };
    let machine_id = db.add_machine("m-1").await.id;
    // Root ignores file permissions, so SQLite opens the file in read-only mode.
    let path = format!("file:{}?mode=ro", path.display()).into();
    let options = Options::Sqlite { path };
    let db = Db { store: Store::open(&options).await.unwrap(), options };
    assert_eq!(db.machine(&machine_id).await.version, 1);
    let more = machine("m-2");
    let write = tx!([more], |tx| tx.insert_machine(&more, &event()));
    let message = unavailable_message(db.write(write).await);
    assert!(message.contains("read-only") && message.contains("writable"), "{message}");
    assert_eq!(db.machine(&machine_id).await.version, 1, "it can be read");
}

fn nowhere(url: String) -> Options {
    Options::Postgres { url, connections: 2, name: "test".into() }
}

#[tokio::test]
async fn an_unreachable_server_is_reported() {
    let url = "postgres://nobody@127.0.0.1:1/nothing".to_string();
    let message = unavailable_message(open(nowhere(url)).await);
    assert!(message.contains("Connection refused"), "{message}");
    let url = "this is no URL".to_string();
    let message = unavailable_message(open(nowhere(url)).await);
    assert!(message.contains("postgres://user@host"), "{message}");
    let url = "postgres://ada:half@other@127.0.0.1:1/x".to_string();
    let message = unavailable_message(open(nowhere(url)).await);
    assert!(message.contains("write %40") && !message.contains("other"), "{message}");
}

mod together {
    use super::*;

    on_postgres!(replicas_that_start_together_migrate_once, events_from_another_cluster_come_first,);

    async fn replicas_that_start_together_migrate_once(db: Db) {
        let Options::Postgres { url, .. } = &db.options else { panic!("not PostgreSQL") };
        execute_on_postgres(url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public").await;
        let mut opening = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let options = db.options.clone();
            opening.spawn(async move { Store::open(&options).await.map(drop) });
        }
        let opened = opening.join_all().await;
        assert!(opened.iter().all(Result::is_ok), "{opened:?}");
        db.add_machine("m-1").await;
    }

    /// A dump of another cluster has transaction ids that this cluster has not assigned yet.
    async fn events_from_another_cluster_come_first(db: Db) {
        let run = db.add_run("op-1").await;
        db.events(2).await;
        let Options::Postgres { url, .. } = &db.options else { panic!("not PostgreSQL") };
        execute_on_postgres(url, "UPDATE events SET tx = tx + 1000000000").await;
        let db = db.open_another().await;
        db.update_unclaimed(&run, Workflow::Running).await;
        let names: Vec<_> = db.events(3).await.into_iter().map(|one| one.state).collect();
        assert_eq!(names, ["NEW", "pending", "running"]);
    }
}
