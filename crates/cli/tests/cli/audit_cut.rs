//! An audit log that was cut while no server ran.

use crate::api_http::http_to;
use crate::fleet::{DatabaseKind, Server, Setup, TEST_TIMEOUT, TEST_TOKEN, new_database, postgres};
use crate::unreadable::{expect, run_sql};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// SQL belongs to the store crate, even for a test that attacks the database.
const CUT: &str = include_str!("../../../store/tests/cut_audit.sql");
const THIN: &str = include_str!("../../../store/tests/thin_audit.sql");
const INTACT: &str = "all as they were written";

fn record(setup: &Setup) -> PathBuf {
    setup.dir.join("audit-end.position")
}

/// Registers machines, and waits until all entries are sealed and the end is recorded. Returns the
/// record.
async fn until_recorded(server: &Server, machines: &[&str]) -> String {
    let mut api = server.clients().await;
    for id in machines {
        api.register(id).await;
    }
    let started = Instant::now();
    loop {
        let said = expect(&server.url(), "audit verify", 0, &[INTACT]);
        let end = said.lines().find_map(|line| line.strip_prefix("Checkpoint: "));
        let recorded = std::fs::read_to_string(record(&server.setup)).unwrap_or_default();
        if !said.contains("not sealed yet") && end.is_some_and(|end| recorded.starts_with(end)) {
            return recorded;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{said}\n{recorded}");
    }
}

/// Each command about the log says that it was cut.
#[track_caller]
fn alarm(server: &Server, words: &[&str]) {
    let file = record(&server.setup).display().to_string();
    let words = [words, &[file.as_str()]].concat();
    expect(&server.url(), "audit verify", 1, &words);
    expect(&server.url(), "audit status", 1, &words);
    expect(&server.url(), "why", 1, &["audit-log", "was cut", "farrier audit verify"]);
    let page = first_page(server);
    assert!(page.contains("audit-log") && page.contains("farrier audit verify"), "{page}");
    assert!(!page.contains("Nothing needs you"), "{page}");
    let log = server.log();
    assert!(log.contains("ERROR") && log.contains("the audit log was cut"), "{log}");
}

/// The first page of the console.
fn first_page(server: &Server) -> String {
    let token = format!("Authorization: Bearer {TEST_TOKEN}");
    http_to(server.setup.port, "GET /", &["Host: 127.0.0.1", &token], &[]).1
}

fn quiet(server: &Server) {
    expect(&server.url(), "audit verify", 0, &[INTACT]);
    expect(&server.url(), "why", 0, &["nothing needs a person"]);
    let page = first_page(server);
    assert!(page.contains("Nothing needs you") && !page.contains("audit-log"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_cut_while_no_server_ran_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    cut(Setup::new(dir.path(), "zero")).await;
    if let Some(cluster) = postgres() {
        let dir = tempfile::tempdir().unwrap();
        let home = DatabaseKind::Postgres(new_database(&cluster).await);
        cut(Setup { home, ..Setup::new(dir.path(), "zero") }).await;
    }
}

async fn cut(setup: Setup) {
    let server = Server::start(setup);
    until_recorded(&server, &["m-1", "m-2", "m-3", "m-4", "m-5"]).await;
    let mode = record(&server.setup).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let server = Server::start(server.terminate());
    quiet(&server);

    let setup = server.terminate();
    run_sql(&setup, CUT).await;
    let server = Server::start(setup);
    alarm(&server, &["entry 5, which this server has recorded", "is missing"]);
    // It serves. What is logged now does not hide the cut, also after another start.
    let mut api = server.clients().await;
    for id in ["m-6", "m-7", "m-8"] {
        api.register(id).await;
    }
    alarm(&server, &["is missing"]);
    let server = Server::start(server.terminate());
    alarm(&server, &["is missing"]);

    // A person who has compared the log with a copy removes the record.
    let setup = server.terminate();
    std::fs::remove_file(record(&setup)).unwrap();
    let server = Server::start(setup);
    assert!(server.log().contains("its end was not recorded here"), "{}", server.log());
    until_recorded(&server, &["m-9"]).await;
    quiet(&server);
    forged(server).await;
}

/// A record that names an earlier entry would hide a cut.
async fn forged(server: Server) {
    let whole = until_recorded(&server, &["m-10"]).await;
    let setup = server.terminate();
    let signature = whole.trim().rsplit_once('.').unwrap().1;
    let forge = |path: &Path| {
        let text = format!("3:{}.{signature}\n", "0".repeat(64));
        std::fs::write(path, text).unwrap();
    };
    forge(&record(&setup));
    let server = Server::start(setup);
    alarm(&server, &["was changed, or belongs to another database"]);
    // It was not replaced, which would end the alarm.
    let server = Server::start(server.terminate());
    alarm(&server, &["was changed, or belongs to another database"]);
    let setup = server.terminate();
    std::fs::write(record(&setup), whole).unwrap();
    let server = Server::start(setup);
    quiet(&server);

    // The last entry, whose seal is recorded, is left in place.
    let setup = server.terminate();
    run_sql(&setup, THIN).await;
    alarm(&Server::start(setup), &["1 entries before entry", "are missing"]);
}
