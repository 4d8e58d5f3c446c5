//! Notifiers as an operator types them, with a receiver in another language: signatures, a receiver
//! that answers 500 or hangs, a server that is killed, and dead letters.

use crate::fleet::{DatabaseKind, Server, Setup, TEST_TIMEOUT, new_database, postgres};
use crate::unreadable::expect;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KEY: &str = "0123456789abcdef";

struct Receiver {
    child: Child,
    port: u16,
    mode: PathBuf,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn start(dir: &Path) -> Self {
        let mode = dir.join("mode");
        std::fs::write(&mode, "ok").unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/webhook_receiver.py");
        let mut command = Command::new("python3");
        command.args([script, KEY]).arg(&mode).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let received = Arc::clone(&requests);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                received.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, port, mode, requests }
    }

    fn answer(&self, mode: &str) {
        std::fs::write(&self.mode, mode).unwrap();
    }

    /// Waits until the requests are as expected, and returns them.
    fn wait_for(&self, what: &str, expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let started = Instant::now();
        loop {
            let requests = self.requests.lock().unwrap().clone();
            if expected(&requests) {
                return requests;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{what}: {requests:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ids of the failed operations that the receiver has accepted, without repeats.
fn accepted(requests: &[Value]) -> BTreeSet<String> {
    let of_failures = requests
        .iter()
        .filter(|one| one["status"] == 204 && one["event"]["type"] == "farrier.operation.failed");
    of_failures.map(|one| one["event"]["subject"].as_str().unwrap().to_string()).collect()
}

/// Powers machines off, which fails. Returns the operations.
fn fail_operations(url: &str, machines: &[&str]) -> BTreeSet<String> {
    let fail = |machine: &&str| {
        let line = format!("machine power {machine} off --no-wait -o json");
        let text = expect(url, &line, 0, &[]);
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let operation = values.next().expect("an operation").unwrap();
        operation["operation_id"].as_str().unwrap().to_string()
    };
    machines.iter().map(fail).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_gets_every_failure_although_the_server_is_killed() {
    let mut databases = vec![DatabaseKind::Sqlite];
    if let Some(cluster) = postgres() {
        databases.push(DatabaseKind::Postgres(new_database(&cluster).await));
    }
    for home in databases {
        tokio::task::spawn_blocking(|| receive(home)).await.unwrap();
    }
}

fn receive(home: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(dir.path());
    let config = "[engine]\nbackoff_first_ms = 1\nbackoff_most_ms = 5\n".to_string();
    let server = Server::start(Setup { home, config, ..Setup::new(dir.path(), "zero") });
    let url = server.url();
    let key = dir.path().join("key");
    std::fs::write(&key, KEY).unwrap();
    let (key, port) = (key.display(), receiver.port);
    let bound = format!("--for 127.0.0.1:{port}");
    let credential = format!("credential create hook --user farrier --password-file {key}");
    expect(&url, &format!("{credential} {bound}"), 0, &[]);
    let create = format!(
        "notify create ops --url http://127.0.0.1:{port}/in --credential hook \
         --kind operation-failed --max-attempts 100"
    );
    expect(&url, &create, 0, &["farrier notify test ops"]);
    // Without TLS only if the credential says so.
    let refused = expect(&url, "notify test ops", 1, &["use https://", "--allow-plain-http"]);
    assert!(refused.contains("Next: farrier credential set hook"), "{refused}");
    assert!(receiver.requests.lock().unwrap().is_empty());
    let update = format!("credential update hook --user farrier --password-file {key} {bound}");
    expect(&url, &format!("{update} --allow-plain-http"), 0, &[]);
    expect(&url, "notify test ops", 0, &["accepted the test"]);

    for machine in ["m-1", "m-2", "m-3", "m-4"] {
        expect(&url, &format!("machine register {machine} --provider sim"), 0, &[]);
        expect(&url, &format!("enter-maintenance {machine}"), 0, &[]);
    }
    expect(&url, "sim fault add --machine m-* --effect power --action fail --times 0", 0, &[]);
    receiver.answer("500");
    expect(&url, "notify test ops", 1, &["answered 500"]);
    let mut operations = fail_operations(&url, &["m-1", "m-2"]);
    receiver.wait_for("an attempt that fails", |all| {
        all.iter().any(|one| one["event"]["type"] == "farrier.operation.failed")
    });
    // Killed while the receiver answers 500, and while it hangs.
    let server = Server::start(server.kill());
    let url = server.url();
    receiver.answer("hang");
    let before = receiver.requests.lock().unwrap().len();
    receiver.wait_for("an attempt that hangs", |all| all.len() > before);
    let server = Server::start(server.kill());
    let url = server.url();
    receiver.answer("ok");
    operations.extend(fail_operations(&url, &["m-3"]));
    let requests = receiver.wait_for("every failure", |all| accepted(all) == operations);
    for one in &requests {
        assert_eq!(one["valid"], true, "{one}");
        assert_eq!(one["type"], "application/cloudevents+json; charset=UTF-8");
        assert_eq!(one["event"]["specversion"], "1.0");
        assert_eq!(one["event"]["id"], one["id"]);
    }
    let ops = expect(&url, "notify get ops", 0, &["State:", "ok"]);
    assert!(!ops.contains("Problem:"), "{ops}");
    dead_letters(&url, &receiver);
}

/// A notice that is refused once becomes a dead letter, which `why` lists and a replay sends.
fn dead_letters(url: &str, receiver: &Receiver) {
    expect(url, "notify update ops --max-attempts 1", 0, &["updated"]);
    receiver.answer("500");
    let operations = fail_operations(url, &["m-4"]);
    let operation = operations.first().unwrap();
    let started = Instant::now();
    while !expect(url, "notify list", 0, &["ops"]).contains("failing") {
        assert!(started.elapsed() < TEST_TIMEOUT, "it does not fail");
    }
    let letters = expect(url, "notify dead-letters ops", 0, &["dead", "answered 500"]);
    assert!(letters.contains("farrier.operation.failed"), "{letters}");
    expect(url, "why", 1, &["ops", "farrier notify dead-letters ops"]);
    receiver.answer("ok");
    expect(url, "notify replay ops --all --dry-run", 0, &["1 dead letters would be sent again"]);
    expect(url, "notify replay ops --all", 0, &["1 dead letters sent again"]);
    receiver.wait_for("the replayed notice", |all| accepted(all).contains(operation));
    while !expect(url, "notify dead-letters ops", 0, &[]).contains("no dead letters") {
        assert!(started.elapsed() < TEST_TIMEOUT, "it is still there");
    }
    expect(url, "history notifier/ops", 0, &["created", "changed"]);
}

/// The example of the documentation is the code with which this receiver verifies.
#[test]
fn the_example_of_the_documentation_verifies() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/notifications.md");
    let page = std::fs::read_to_string(root).unwrap();
    let script = include_str!("webhook_receiver.py");
    let begin = script.find("def verify").unwrap();
    let end = script.find("\n\n\nKEY").unwrap();
    assert!(page.contains(&script[begin..end]), "copy `verify` to docs/operate/notifications.md");
}
