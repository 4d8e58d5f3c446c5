//! One row of each kind cannot be read, and everything else goes on. `farrier db` finds the rows,
//! sets them aside and puts them back, with and without a server.

use crate::api::{TestServer, fault, is, on_both};
use crate::api_http::http;
use crate::fleet::{Clients, DatabaseKind, Setup, TEST_TIMEOUT};
use crate::stage::{farrier, finish};
use std::process::Command;
use std::time::Instant;

/// SQL belongs to the store crate, even for a test that damages the database.
const UNREADABLE: &str = include_str!("../../../store/tests/unreadable.sql");
const DAMAGE_MACHINE: &str = include_str!("../../../store/tests/damage_machine.sql");
const DAMAGE_RACK_RUNS: &str = include_str!("../../../store/tests/damage_rack_runs.sql");
const DAMAGE_MACHINE_RUNS: &str = include_str!("../../../store/tests/damage_machine_runs.sql");
/// Runs a script in a SQLite database.
const RUN_SCRIPT: &str = "import sqlite3, sys\n\
    connection = sqlite3.connect(sys.argv[1])\n\
    connection.executescript(sys.argv[2])\n\
    connection.commit()";

pub async fn damage(env: &TestServer, sql: &str) {
    run_sql(&env.server.setup, sql).await;
}

/// Runs a script in the database of a server, which need not run.
pub async fn run_sql(setup: &Setup, sql: &str) {
    match &setup.home {
        DatabaseKind::Postgres(url) => {
            let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
            let (client, connection) = connected.unwrap();
            tokio::spawn(connection);
            client.batch_execute(sql).await.unwrap();
        }
        DatabaseKind::Sqlite => {
            let file = setup.dir.join("farrier.db");
            let mut python = Command::new("python3");
            let status = python.args(["-c", RUN_SCRIPT]).arg(file).arg(sql).status();
            assert!(status.unwrap().success());
        }
    }
}

/// Checks the exit code, and that both outputs together contain the words. Returns the outputs.
#[track_caller]
pub fn expect(server: &str, line: &str, code: i32, words: &[&str]) -> String {
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
    damage(env, UNREADABLE).await;
    let server = env.server.url();
    for (line, words) in [
        ("list", "m-2"),
        ("list --sort created_at:desc", "m-2"),
        ("list --filter labels.env!=prod", "m-2"),
        ("list --filter phase=READY", ""),
        ("ops", ""),
        ("ops --filter initiator!=nobody", ""),
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
    for line in ["ops --initiator nobody", "credential list", "trust list", "admin replicas"] {
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
    // They need a person.
    let rows = ["bad-machine", "op-bad", "rack-bad", "node-bad", "plan-bad", "farrier db check"];
    expect(&server, "why", 1, &rows);
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
    let words = ["all can be read", "Set aside:", "bad-machine", "admin", "damaged", "EOF"];
    expect(server, "db check", 0, &words);
    assert!(!expect(server, "list", 0, &["m-2"]).contains("left out"));
    expect(server, "why bad-machine", 0, &["was set aside by admin: damaged", "db put-back"]);
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

/// Waits until the object that the command shows is in this state.
#[track_caller]
fn until_state(server: &str, line: &str, state: &str) {
    let started = Instant::now();
    loop {
        let words: Vec<&str> = line.split(' ').chain(["-o", "json"]).collect();
        let (_, shown, _) = finish(farrier(server, &words));
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        if shown["status"]["state"] == state {
            return;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{line} is never {state}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_active_rack_run_that_cannot_be_read_is_set_aside() {
    on_both("zero", set_rack_run_aside).await;
}

/// The operation that holds a machine.
async fn holder(api: &mut Clients, machine: &str) -> String {
    api.machine(machine).await.status.unwrap().active_operation_id
}

/// A maintenance of a rack with a child run on m-1 that hangs. Returns the parent and the child.
async fn hanging_maintenance(env: &TestServer, api: &mut Clients) -> (String, String) {
    let server = env.server.url();
    let rack =
        "rack create rack-1 --expect-machines 2 --expect-switches 1 --expect-power-shelves 1";
    expect(&server, rack, 0, &[]);
    for (slot, device) in ["power-shelf register ps-1", "switch register sw-1"].iter().enumerate() {
        expect(
            &server,
            &format!("{device} --provider sim --rack rack-1 --slot {}", slot + 1),
            0,
            &[],
        );
    }
    for (slot, id) in [(3, "m-1"), (4, "m-2")] {
        let line = format!("machine register {id} --provider sim --rack rack-1 --slot {slot}");
        expect(&server, &line, 0, &[]);
    }
    until_state(&server, "rack get rack-1", "Ready");
    api.fault(fault("m-1", "power", "hang", 0)).await;
    let start = "rack maintenance start rack-1 --activity power --power reset --no-wait";
    expect(&server, start, 0, &["op-"]);
    let started = Instant::now();
    let child = loop {
        let running = api.list_runs("machine_id=m-1 AND type=POWER AND phase=RUNNING").await;
        if let Some(run) = running.into_iter().next() {
            break run;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "no child run on m-1");
    };
    (holder(api, "m-2").await, child.run_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_run_that_cannot_be_read_stays_while_its_parent_holds_the_device() {
    on_both("zero", set_child_run_aside).await;
}

/// The parent would start the missing child again, with an effect whose outcome is not known.
async fn set_child_run_aside(env: &TestServer, mut api: Clients) {
    let server = env.server.url();
    let (parent, child) = hanging_maintenance(env, &mut api).await;
    damage(env, DAMAGE_MACHINE_RUNS).await;
    let aside = format!("db set-aside run {child} --reason damaged");
    let manual = format!("operation mark-manual {parent} --reason");
    expect(&server, &aside, 2, &[&format!("{child} works for {parent}"), &manual]);
    assert_eq!(holder(&mut api, "m-1").await, parent);
}

/// Its devices are released and wait for a person, and a child run that is active goes on.
async fn set_rack_run_aside(env: &TestServer, mut api: Clients) {
    let server = env.server.url();
    let (parent, child) = hanging_maintenance(env, &mut api).await;
    damage(env, DAMAGE_RACK_RUNS).await;
    expect(&server, "db check", 1, &["1 cannot be read", &parent]);
    // The rack is shown all the same, and names the row.
    let row = format!("run {parent}: ");
    expect(&server, "rack get rack-1", 0, &["m-1", "an operation cannot be read", &row]);
    expect(&server, "why rack-1", 0, &["rack-1 is in Maintenance", &row, "farrier db check"]);
    let aside = format!("db set-aside run {parent} --reason damaged");
    expect(&server, &format!("{aside} --dry-run"), 0, &["would be set aside"]);
    assert_eq!(holder(&mut api, "m-2").await, parent);
    expect(&server, &aside, 0, &["set aside"]);
    // A device without an active child run is released and needs intervention.
    let released = api.machine("m-2").await;
    assert_eq!(holder(&mut api, "m-2").await, "");
    assert!(is(&released, "NeedsIntervention"), "{released:?}");
    expect(&server, "why m-2", 0, &["what it did last is not known"]);
    until_state(&server, "switch get sw-1", "Error");
    until_state(&server, "power-shelf get ps-1", "Error");
    expect(&server, "why sw-1", 0, &["what it did last is not known", "farrier switch retry sw-1"]);
    until_state(&server, "rack get rack-1", "Error");
    // The child run holds its machine itself, until it ends.
    assert_eq!(holder(&mut api, "m-1").await, child);
    let put_back = format!("db put-back run {parent} --reason again");
    expect(&server, &put_back, 2, &["cannot be put back", "its devices were released"]);
    api.clear_faults().await;
    api.cancel(&child).await.unwrap();
    api.until(&child, |run| run.finished_at.is_some()).await;
    assert_eq!(holder(&mut api, "m-1").await, "");
    for (retry, get) in [
        ("switch retry sw-1", "switch get sw-1"),
        ("power-shelf retry ps-1", "power-shelf get ps-1"),
    ] {
        expect(&server, retry, 0, &[]);
        until_state(&server, get, "Ready");
    }
    expect(&server, "rack maintenance start rack-1", 0, &["SUCCEEDED"]);
    until_state(&server, "rack get rack-1", "Ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_not_put_back_while_another_holds_its_machine() {
    on_both("zero", put_run_back_over_another).await;
}

/// The machine was released with the first run; the second one keeps it.
async fn put_run_back_over_another(env: &TestServer, mut api: Clients) {
    let server = env.server.url();
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "reboot", "hang", 0)).await;
    let reboot = "reboot m-1 --no-wait";
    expect(&server, reboot, 0, &["op-"]);
    let first = holder(&mut api, "m-1").await;
    api.at_step(&first, "reboot").await;
    damage(env, DAMAGE_MACHINE_RUNS).await;
    expect(&server, &format!("db set-aside run {first} --reason damaged"), 0, &["set aside"]);
    assert_eq!(holder(&mut api, "m-1").await, "");
    expect(&server, reboot, 0, &["op-"]);
    let second = holder(&mut api, "m-1").await;
    assert_ne!(second, first);
    let put_back = format!("db put-back run {first} --reason again");
    let taken = format!("run {first} cannot be put back: {second} holds m-1 now");
    expect(&server, &put_back, 2, &[&taken, &format!("farrier why {second}")]);
    assert_eq!(holder(&mut api, "m-1").await, second);
    api.clear_faults().await;
    api.cancel(&second).await.unwrap();
    api.finished(&second).await;
    expect(&server, &put_back, 0, &["put back"]);
    assert_eq!(holder(&mut api, "m-1").await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_not_put_back_while_another_has_its_node_name() {
    on_both("zero", node_name_of_a_machine_set_aside).await;
}

async fn node_name_of_a_machine_set_aside(env: &TestServer, _: Clients) {
    let server = env.server.url();
    let register = |id: &str| {
        format!("machine register {id} --provider sim --cluster c --node-name gpu-1.example")
    };
    expect(&server, &register("m-1"), 0, &[]);
    damage(env, DAMAGE_MACHINE).await;
    expect(&server, &register("m-2"), 2, &["gpu-1.example", "m-1"]);
    expect(&server, "db set-aside machine m-1 --reason damaged", 0, &["set aside"]);
    expect(&server, &register("m-2"), 0, &[]);
    let put_back = "db put-back machine m-1 --reason again";
    let words =
        ["m-1 cannot be put back", "gpu-1.example", "that of m-2 now", "machine update m-2"];
    expect(&server, put_back, 2, &words);
    expect(&server, "machine update m-2 --node-name=", 0, &[]);
    expect(&server, put_back, 0, &["put back"]);
    expect(&server, "machine update m-2 --node-name=gpu-1.example", 2, &["m-1"]);
}
