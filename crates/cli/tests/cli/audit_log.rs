//! The audit log: every request that acts is in it, and a changed log is found.

use crate::access::token;
use crate::api::{TestServer, on_both};
use crate::fleet::{Clients, TEST_TIMEOUT, channel_with};
use crate::unreadable::{damage, expect};
use proto::v1;
use serde_json::Value;
use std::time::Instant;

/// SQL belongs to the store crate, even for a test that attacks the database.
const TAMPER: &str = include_str!("../../../store/tests/tamper_audit.sql");
const LOSE: &str = include_str!("../../../store/tests/lose_audit.sql");
const FIND: &str = include_str!("../../../store/tests/find_audit.sql");
const TRUNCATE: &str = include_str!("../../../store/tests/truncate_audit.sql");

fn entries(server: &str, line: &str) -> Vec<Value> {
    let line = format!("audit list {line}");
    let json = expect(server, &format!("{} -o json", line.trim()), 0, &[]);
    serde_json::from_str(&json).unwrap()
}

/// The number of requests that an entry stands for. Numbers of 64 bits are texts in JSON.
fn count(entry: &Value) -> i64 {
    entry["count"].to_string().trim_matches('"').parse().unwrap()
}

/// Waits until the log has an entry that fits.
fn until_logged(server: &str, line: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        if let Some(found) = entries(server, line).into_iter().find(&fits) {
            return found;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{:#?}", entries(server, ""));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_that_acts_is_logged_once() {
    on_both("zero", logged).await;
}

async fn logged(env: &TestServer, mut api: Clients) {
    let url = env.server.url();
    api.in_maintenance("m-1").await;
    let (_, secret) = token(env, "eve", &["operator"]).await;
    let mut eve = Clients::on(channel_with(&url, &secret).await);
    let mut request = tonic::Request::new(v1::ReimageMachineRequest {
        machine_id: "m-1".into(),
        request_id: "r-1".into(),
        image_ref: "rhel-9".into(),
        ..Default::default()
    });
    request.metadata_mut().insert("farrier-initiator", "root".parse().unwrap());
    let run = eve.machines.reimage_machine(request).await.unwrap().into_inner();
    eve.finished(&run.operation_id).await;
    let found = entries(&url, "--object m-1 --user eve");
    assert_eq!(found.len(), 1, "{found:#?}");
    let entry = &found[0];
    assert_eq!(entry["call"], "farrier.v1.MachineService/ReimageMachine");
    assert_eq!(entry["operation_id"], run.operation_id);
    assert_eq!((&entry["method"], &entry["remark"]), (&"token".into(), &"root".into()));
    assert_eq!(entry["accepted"], true);
    assert_eq!(entries(&url, &format!("--object {}", run.operation_id)).len(), 1);

    // A dry run and a read are not in it. Refusals are one entry with a count.
    let before = entries(&url, "").len();
    expect(&url, "reboot m-1 --dry-run", 0, &[]);
    expect(&url, "list", 0, &[]);
    assert_eq!(entries(&url, "").len(), before);
    for _ in 0..7 {
        let request = v1::SetRmaRequest { machine_id: "m-1".into(), ..Default::default() };
        eve.admin.set_rma(request).await.unwrap_err();
    }
    let counted = |entry: &Value| entry["refusal_reason"] == "PERMISSION_DENIED";
    let refused = until_logged(&url, "--user eve", counted);
    assert_eq!(refused["call"], "farrier.v1.AdminService/SetRma");
    let all = || entries(&url, "--user eve").into_iter().filter(counted).collect::<Vec<_>>();
    let started = Instant::now();
    while all().iter().map(count).sum::<i64>() < 7 {
        assert!(started.elapsed() < TEST_TIMEOUT, "{:#?}", all());
    }
    assert!(all().len() < 7, "{:#?}", all());
    tampered(env, &url).await;
}

async fn tampered(env: &TestServer, url: &str) {
    let sealed = |entry: &Value| entry["position"] != "0" && entry["position"] != 0;
    until_logged(url, "", |entry| {
        entry["call"] == "farrier.v1.MachineService/ReimageMachine" && sealed(entry)
    });
    let text = expect(url, "audit verify", 0, &["all as they were written", "Checkpoint: "]);
    let checkpoint = text.lines().find_map(|line| line.strip_prefix("Checkpoint: ")).unwrap();
    let with_checkpoint = format!("audit verify --checkpoint {checkpoint}");
    expect(url, &with_checkpoint, 0, &["all as they were written"]);
    let other = format!("audit verify --checkpoint 1:{}", "0".repeat(64));
    expect(url, &other, 1, &["entry 1 has another seal than the checkpoint"]);
    damage(env, TAMPER).await;
    expect(url, "audit verify", 1, &["the log is damaged", "entry 2 (seq ", "was changed"]);
    damage(env, TRUNCATE).await;
    expect(url, "audit verify", 1, &["entries 3 to ", "are missing"]);
    expect(url, &with_checkpoint, 1, &["of the checkpoint is missing"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destructive_request_that_cannot_be_logged_is_refused() {
    on_both("zero", not_logged).await;
}

async fn not_logged(env: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    let request = || v1::ReimageMachineRequest {
        machine_id: "m-1".into(),
        request_id: "r-1".into(),
        image_ref: "rhel-9".into(),
        ..Default::default()
    };
    damage(env, LOSE).await;
    let refused = api.machines.reimage_machine(request()).await.unwrap_err();
    assert_ne!(refused.code(), tonic::Code::Ok, "{refused:?}");
    assert!(api.list_runs("type=REIMAGE").await.is_empty(), "it started");
    damage(env, FIND).await;
    // The same request is accepted once it can be logged.
    let run = api.machines.reimage_machine(request()).await.unwrap().into_inner();
    api.finished(&run.operation_id).await;
    let logged = entries(&env.server.url(), &format!("--object {}", run.operation_id));
    assert_eq!(logged.len(), 1, "{logged:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_found_by_its_whole_name() {
    let (env, mut api) = TestServer::open("zero").await;
    for id in ["a_b", "axb", "a_b_c"] {
        api.register(id).await;
    }
    let url = env.server.url();
    let found = entries(&url, "--object a_b");
    assert!(!found.is_empty());
    for entry in found {
        let objects = entry["object_ids"].as_array().unwrap();
        assert!(objects.contains(&"a_b".into()), "{entry:#}");
    }
    assert_eq!(entries(&url, "--object %"), Vec::<Value>::new());
    // The form of the command without a subcommand, and one object per line.
    let lines = expect(&url, "audit --since 1h --who admin --object axb -o jsonl", 0, &[]);
    let listed = entries(&url, "--since 1h --user admin --object axb");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // They may have been sealed in between.
    let sequences = |entries: &[Value]| -> Vec<Value> {
        entries.iter().map(|entry| entry["sequence"].clone()).collect()
    };
    assert_eq!(sequences(&lines), sequences(&listed));
    assert!(!lines.is_empty());
}
