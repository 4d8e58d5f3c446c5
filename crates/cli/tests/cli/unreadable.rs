//! One row of each kind cannot be read, and everything else goes on. `farrier db` finds the rows,
//! sets them aside and puts them back, with and without a server.

use crate::api::{TestServer, on_both};
use crate::api_http::http;
use crate::fleet::{Clients, DatabaseKind};
use crate::stage::{farrier, finish};
use std::process::Command;

/// SQL belongs to the store crate, even for a test that damages the database.
const UNREADABLE: &str = include_str!("../../../store/tests/unreadable.sql");
/// Runs a script in a SQLite database.
const RUN_SCRIPT: &str = "import sqlite3, sys\n\
    connection = sqlite3.connect(sys.argv[1])\n\
    connection.executescript(sys.argv[2])\n\
    connection.commit()";

async fn damage(env: &TestServer) {
    match &env.server.setup.home {
        DatabaseKind::Postgres(url) => {
            let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
            let (client, connection) = connected.unwrap();
            tokio::spawn(connection);
            client.batch_execute(UNREADABLE).await.unwrap();
        }
        DatabaseKind::Sqlite => {
            let file = env.server.setup.dir.join("farrier.db");
            let mut python = Command::new("python3");
            let status = python.args(["-c", RUN_SCRIPT]).arg(file).arg(UNREADABLE).status();
            assert!(status.unwrap().success());
        }
    }
}

/// Checks the exit code, and that both outputs together contain the words. Returns the outputs.
#[track_caller]
fn expect(server: &str, line: &str, code: i32, words: &[&str]) -> String {
    let (ended, stdout, stderr) = finish(farrier(server, &line.split(' ').collect::<Vec<_>>()));
    let text = stdout + &stderr;
    assert_eq!(ended, code, "{line}\n{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in the output of {line}:\n{text}");
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_goes_on_beside_unreadable_rows() {
    on_both("zero", beside_unreadable_rows).await;
}

async fn beside_unreadable_rows(env: &TestServer, mut api: Clients) {
    for id in ["m-0", "m-1", "m-2"] {
        api.register(id).await;
    }
    damage(env).await;
    let server = env.server.url();
    for (line, words) in [
        ("list", "m-2"),
        ("list --sort created_at:desc", "m-2"),
        ("ops", ""),
        ("runs", ""),
        ("plans", "plan-reboot"),
        ("rack list", ""),
        ("switch list", ""),
        ("power-shelf list", ""),
        ("node list", ""),
        ("site list", ""),
        ("image list", ""),
        ("firmware list", ""),
        ("health list", ""),
    ] {
        expect(&server, line, 0, &[words, "1 row left out", "farrier db check"]);
    }
    for line in ["credential list", "trust list", "admin replicas"] {
        expect(&server, line, 0, &[]);
    }
    for page in ["/", "/operations", "/racks", "/nodes"] {
        let (head, body) = http(env, "GET", page);
        assert!(head.starts_with("http/1.1 200"), "{page}: {head}");
        assert!(body.contains("cannot be read and is left out"), "{page}: {body}");
    }
    let (_, metrics) = http(env, "GET", "/metrics");
    assert!(metrics.contains("farrier_unreadable_rows{kind=\"machine\"} 1"), "{metrics}");
    // Work goes on.
    api.done("m-2", "ENTER_MAINTENANCE", "enter").await;
    // The row is named wherever it is needed.
    expect(&server, "get bad-machine", 5, &["machine bad-machine: EOF", "farrier db check"]);
    let words = ["cannot be read", "machine bad-machine: EOF", "db set-aside machine bad-machine"];
    expect(&server, "why bad-machine", 0, &words);
    expect(&server, "why rack-bad", 0, &["rack rack-bad: EOF", "db set-aside rack rack-bad"]);
    expect(&server, "why op-bad", 0, &["run op-bad: EOF"]);
    set_aside(&server).await;
    offline(env);
}

async fn set_aside(server: &str) {
    let rows = [
        "machine bad-machine",
        "run op-bad",
        "plan plan-bad",
        "rack rack-bad",
        "switch sw-bad",
        "power_shelf ps-bad",
        "host host:m-1",
        "node node-bad",
        "site site-bad",
        "image image-bad",
        "firmware fw-bad",
        "health_report m-1/bad",
        "deployment op-bad/one/1",
        "task op-bad/two/1",
        "inspection m-1",
    ];
    expect(server, "db check", 1, &["15 cannot be read", "op-bad/one/1"]);
    expect(server, "db set-aside machine m-1 --reason r", 2, &["no machine m-1 is stored that"]);
    for row in rows {
        let dry_run = format!("db set-aside {row} --reason damaged --dry-run");
        expect(server, &dry_run, 0, &["would be set aside"]);
        expect(server, &format!("db set-aside {row} --reason damaged"), 0, &["set aside"]);
    }
    let words = ["all can be read", "Set aside:", "bad-machine", "ada", "damaged", "EOF"];
    expect(server, "db check", 0, &words);
    assert!(!expect(server, "list", 0, &["m-2"]).contains("left out"));
    expect(server, "why bad-machine", 0, &["was set aside by ada: damaged", "db put-back"]);
    expect(server, "db put-back machine bad-machine --reason again", 0, &["put back"]);
    expect(server, "list", 0, &["1 row left out"]);
}

/// The same commands work without a server.
fn offline(env: &TestServer) {
    let database = match &env.server.setup.home {
        DatabaseKind::Sqlite => env.server.setup.dir.display().to_string(),
        DatabaseKind::Postgres(url) => url.clone(),
    };
    let nowhere = "http://127.0.0.1:1";
    let check = format!("db check --database {database}");
    expect(nowhere, &check, 1, &["1 cannot be read", "bad-machine"]);
    let line = format!("db set-aside machine bad-machine --reason off --database {database}");
    expect(nowhere, &line, 0, &["set aside"]);
    expect(nowhere, &check, 0, &["all can be read"]);
    expect(nowhere, "db check --database /nowhere", 4, &["there is no database"]);
}
