//! The number of PostgreSQL connections of a replica never exceeds its limit.

use crate::audit::{FailoverClient, audit, in_maintenance, names};
use crate::fleet::{Clients, DatabaseKind, Server, Setup, new_database, postgres};
use proto::v1;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

const ALLOWED: usize = 4;
/// SQL belongs to the store crate, even for a test that reads the database directly.
const SESSIONS: &str = include_str!("../../../store/tests/sessions.sql");
const ALL: &str = "all together";

/// Polls the number of connections by name and keeps the highest numbers.
async fn count(url: String, over: Arc<AtomicBool>) -> BTreeMap<String, usize> {
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    while !over.load(Ordering::Relaxed) {
        let mut now: BTreeMap<String, usize> = BTreeMap::new();
        for row in client.query(SESSIONS, &[]).await.unwrap() {
            *now.entry(row.get(0)).or_default() += 1;
            *now.entry(ALL.into()).or_default() += 1;
        }
        for (name, count) in now {
            let most = most.entry(name).or_default();
            *most = count.max(*most);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    most
}

/// Sends expensive requests and drops them before the response, like a user who closes the page.
async fn drop_requests(mut api: Clients, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let request = api.runs.list_runs(v1::ListRunsRequest::default());
        drop(timeout(Duration::from_millis(2), request).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_replica_opens_more_connections_than_it_may() {
    const MACHINES: usize = 24;
    let Some(cluster) = postgres() else { return };
    let url = new_database(&cluster).await;
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "zero");
    setup.home = DatabaseKind::Postgres(url.clone());
    setup.top = format!("database_connections = {ALLOWED}");
    let servers = [Server::start(setup.replica("one")), Server::start(setup.replica("two"))];
    let over = Arc::new(AtomicBool::new(false));
    let counted = tokio::spawn(count(url, Arc::clone(&over)));
    let machines = names(MACHINES);
    in_maintenance(&servers[0].clients().await, &machines).await;
    let mut bystanders = Vec::new();
    for server in servers.iter().cycle().take(6) {
        bystanders.push(tokio::spawn(drop_requests(server.clients().await, Arc::clone(&over))));
    }
    let load = machines.into_iter().enumerate().map(|(index, machine)| {
        let mut through = FailoverClient::of(&servers[index % 2..=index % 2]);
        tokio::spawn(async move {
            let mut runs = Vec::new();
            for round in 0..4 {
                let run = through.start(&machine, "REPAVE", &format!("r-{round}")).await;
                through.finished(&run).await;
                runs.push(run);
            }
            runs
        })
    });
    let load: Vec<_> = load.collect();
    let mut runs = Vec::new();
    for one in load {
        runs.extend(one.await.unwrap());
    }
    over.store(true, Ordering::Relaxed);
    for one in bystanders {
        one.await.unwrap();
    }
    let most = counted.await.unwrap();
    println!("at most {most:?}");
    // Connections carry the replica's name, so that an operator can attribute them.
    for name in ["farrier/one", "farrier/two"] {
        let count = most.get(name).copied().unwrap_or_default();
        assert!((1..=ALLOWED).contains(&count), "{name}: {most:?}");
    }
    // A connection that is being opened has no name yet.
    assert!(most[ALL] <= ALLOWED * servers.len(), "{most:?}");
    audit(&servers[0].clients().await, &runs).await;
}

#[test]
fn too_few_connections_are_refused_with_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("farrier.toml");
    std::fs::write(&file, "database_connections = 2\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    let output = command.args(["serve", "--config"]).arg(&file).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("database_connections is 2; use at least 3"), "{message}");
}
