//! Hardware commands of the operator: the real binary, the real server, and a third-party Redfish
//! emulator.

use crate::fleet::{Server, Setup, free_port};
use crate::hardware::{MAC, PASSWORD, SUSHY, emulator, password, peer, set};
use crate::stage::{farrier, finish};

/// An operator and the URL of the server.
struct Operator(String);

impl Operator {
    /// Runs a command, checks its exit code, and returns both output streams.
    async fn run(&self, line: &str, expected: i32) -> String {
        let (url, line) = (self.0.clone(), line.to_string());
        let typed = tokio::task::spawn_blocking(move || {
            let args: Vec<&str> = line.split(' ').collect();
            let (code, stdout, stderr) = finish(farrier(&url, &args));
            assert_eq!(code, expected, "{line}\n{stdout}\n{stderr}");
            format!("{stdout}{stderr}")
        });
        typed.await.unwrap()
    }

    async fn run_and_check(&self, line: &str, expected: i32, words: &[&str]) -> String {
        let text = self.run(line, expected).await;
        for name in words {
            assert!(text.contains(name), "{line}: {name:?} is not in\n{text}");
        }
        text
    }

    async fn json(&self, line: &str) -> serde_json::Value {
        let text = self.run(&format!("{line} -o json"), 0).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}\n{text}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bmc_is_tried_out_its_machine_is_found_imported_and_looked_at() {
    let Some(program) = peer(SUSHY) else { return };
    let dir = tempfile::tempdir().unwrap();
    let bmc = emulator(&program, dir.path());
    let url = format!("http://127.0.0.1:{}", bmc.port);
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let person = Operator(server.url());

    // A wrong login is tried once and not again, by any command.
    person
        .run_and_check(&format!("bmc test {url}"), 1, &["✗ login", "give --credential NAME"])
        .await;
    set(&server, "bmc", password("wrong")).await;
    let test = format!("bmc test {url} --credential bmc");
    let next = format!("next: farrier bmc unlock {url}");
    person.run_and_check(&test, 1, &["✓ service", "✗ login", "- power", &next]).await;
    person.run_and_check(&test, 1, &["was not asked: it refused"]).await;
    let find = format!("discover {url} --credential bmc");
    person
        .run_and_check(&find, 0, &["login refused", "1 refused the login", "was not asked"])
        .await;
    person.run_and_check(&format!("bmc unlock {url}/"), 0, &[" unlocked"]).await;
    person.run_and_check(&format!("bmc unlock {url}"), 0, &["nothing to unlock"]).await;
    person.run_and_check(&test, 1, &["401"]).await;

    // The right password may be tried because it is new.
    set(&server, "bmc", password(PASSWORD)).await;
    let reported = person
        .run_and_check(
            &test,
            0,
            &[
                "can read the password",
                "✓ login",
                "✓ systems",
                MAC,
                "would be chosen",
                "✓ power             ok         On",
                "✓ resets",
                "ForceOff",
                "✓ boot",
                "Pxe",
                "Farrier can see whether it is on",
                "next: farrier machine register ",
                "--bmc-credential bmc",
            ],
        )
        .await;
    assert!(!reported.contains(PASSWORD), "{reported}");

    // The machine is found, and registered only with --import.
    let closed = format!("http://127.0.0.1:{}", free_port());
    let both = format!("discover {url},{closed} --credential bmc");
    person
        .run_and_check(
            &both,
            0,
            &["new", "2 addresses probed: 1 machine found (1 new), 1 unreachable", "--import"],
        )
        .await;
    person.run_and_check("list", 0, &["no machines yet"]).await;
    let import = format!("{both} --import --label rack=r1");
    person.run_and_check(&import, 0, &["registered as ", "1 registered"]).await;
    let again = person.run_and_check(&import, 0, &["known as ", "(1 known)"]).await;
    assert!(!again.contains("registered"), "{again}");
    let list = person.json("list").await;
    let machines = list.as_array().unwrap();
    assert_eq!(machines.len(), 1, "{list}");
    let machine = &machines[0];
    assert_eq!(machine["spec"]["provider"], "datacenter");
    assert_eq!(machine["spec"]["bmc_endpoint"], url);
    assert_eq!(machine["spec"]["bmc_credential"], "bmc");
    assert_eq!(machine["spec"]["mac_addresses"][0], MAC);
    assert_eq!(machine["labels"]["rack"], "r1");
    let id = machine["machine_id"].as_str().unwrap().to_string();
    person.run_and_check(&test, 0, &[&format!("next: farrier machine inspect {id}")]).await;

    check_reads(&person, &id).await;
    assert!(!server.log().contains(PASSWORD), "a secret was shown");
    drop(bmc);
    let gone = person.run(&format!("machine power {id}"), 4).await;
    assert!(
        gone.contains("bmc-unreachable") && gone.contains("farrier fault bmc-unreachable"),
        "{gone}"
    );
}

async fn check_reads(person: &Operator, id: &str) {
    person
        .run_and_check(&format!("machine inspect {id}"), 0, &["Power:", "on", MAC, "Next boot:"])
        .await;
    let observed = person.json(&format!("machine inspect {id}")).await;
    assert_eq!(observed["power"], "ON", "{observed}");
    assert_eq!(observed["nics"][0]["mac_address"], MAC, "{observed}");
    person.run_and_check(&format!("machine power {id}"), 0, &[&format!("{id} is on")]).await;
    person.run_and_check(&format!("machine power {id} status"), 0, &["is on"]).await;
    // The emulator has no log, which differs from an empty one.
    let log = format!("machine console-log {id} --since 1h --limit 5");
    person.run_and_check(&log, 2, &["has no event log", "farrier fault not-supported"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_looked_at_says_why_and_what_to_type() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let person = Operator(server.url());
    for line in ["machine inspect nobody", "machine console-log nobody", "machine power nobody"] {
        person.run_and_check(line, 2, &["no machine nobody is known", "farrier list"]).await;
    }
    person.run("machine register bare --provider datacenter", 0).await;
    person
        .run_and_check("machine inspect bare", 2, &["no bmc_endpoint", "farrier machine update"])
        .await;
    person
        .run("machine register keyless --provider datacenter --bmc-endpoint 127.0.0.1:1", 0)
        .await;
    person
        .run_and_check(
            "machine power keyless",
            2,
            &["no credential is named", "credential-missing"],
        )
        .await;
    for (what, words) in [
        ("10.0.0.0/40", "no address and no range"),
        ("10.0.0.0/16", "give 10.0.0.0/20, then 10.0.16.0/20"),
        ("https://u:hush@h", "give them as a credential"),
        ("missing.txt.", "addresses[0]"),
    ] {
        let reported =
            person.run_and_check(&format!("discover {what} --credential bmc"), 2, &[words]).await;
        assert!(!reported.contains("hush"), "{reported}");
    }
    person.run_and_check("discover 127.0.0.1:1", 2, &["no credential is named"]).await;
    person
        .run_and_check("discover 127.0.0.1:1 --credential bmc", 2, &["no credential \"bmc\""])
        .await;
    set(&server, "bmc", password("x")).await;
    person.run_and_check("discover 127.0.0.1:1 --credential bmc", 0, &["1 unreachable"]).await;
    person
        .run_and_check(
            "discover 127.0.0.1:1 --credential bmc --provider sim",
            2,
            &["finds no BMCs", "datacenter"],
        )
        .await;
    person.run_and_check("bmc test ftp://h --credential bmc", 1, &["✗ address", "https://"]).await;
    person.run_and_check("bmc test 127.0.0.1 --ca /no/file", 2, &["/no/file"]).await;
    person
        .run_and_check("bmc unlock ftp://h", 2, &["error: endpoint cannot be used", "https://"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_keeps_the_pin_of_an_address_that_a_switch_uses() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let person = Operator(server.url());
    let [shared, own] = ["https://127.0.0.1:1", "https://127.0.0.1:2"];
    let fingerprint = "ab".repeat(32);
    for (object, bmc) in [("machine register m-1", shared), ("machine register m-2", own)] {
        person.run(&format!("{object} --provider datacenter --bmc-endpoint {bmc}"), 0).await;
        person.run(&format!("trust set {bmc} {fingerprint}"), 0).await;
    }
    person
        .run(&format!("switch register sw-1 --provider datacenter --bmc-endpoint {shared}"), 0)
        .await;
    for machine in ["m-1", "m-2"] {
        person.run(&format!("machine delete {machine}"), 0).await;
    }
    let pins = person.run("trust list", 0).await;
    assert!(pins.contains(shared) && !pins.contains(own), "{pins}");
}

/// One line for each operation that is accepted, ends or is refused; none for a dry run.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_leaves_its_lines_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup { log_level: "info", ..Setup::new(dir.path(), "zero") });
    let person = Operator(server.url());
    person.run("machine register m-1 --provider sim", 0).await;
    person.run("enter-maintenance m-1 --dry-run", 0).await;
    person.run("enter-maintenance m-1", 0).await;
    person.run("machine register m-2 --provider sim", 0).await;
    person.run("reimage m-2", 2).await;
    let log = server.log();
    for line in ["operation accepted", "operation ended", "operation refused"] {
        let found = log.lines().filter(|one| one.contains(line) && one.contains("INFO")).count();
        assert_eq!(found, 1, "{line}:\n{log}");
    }
}
