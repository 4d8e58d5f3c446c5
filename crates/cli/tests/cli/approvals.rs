//! Requests that need a second person, as two people type them.

use crate::access::token;
use crate::api::{TestServer, on_both, refused};
use crate::api_cli::Terminal;
use crate::fleet::{Clients, NO_CONTEXTS, Server, channel_with};
use crate::repairs::{node_of, quick};
use crate::stage::finish;
use crate::unreadable::expect;
use proto::v1;
use std::process::{Command, Stdio};
use tonic::Code;
use tonic_types::StatusExt;

/// Types a command with a token of one person. Returns both outputs.
#[track_caller]
fn typed_by(server: &str, token: &str, line: &str, code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    command.args(line.split(' ')).env("FARRIER_SERVER", server).env("FARRIER_TOKEN", token);
    command.env("FARRIER_CONTEXTS", NO_CONTEXTS);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (ended, stdout, stderr) = finish(child);
    let text = stdout + &stderr;
    assert_eq!(ended, code, "{line}\n{text}");
    text
}

#[track_caller]
fn contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_people_start_a_reimage() {
    on_both("zero", two_people).await;
}

async fn two_people(env: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    let url = env.server.url();
    let (_, ada) = token(env, "ada", &["operator"]).await;
    let (_, ada_again) = token(env, "ada", &["admin"]).await;
    let (_, bob) = token(env, "bob", &["operator"]).await;
    let (_, root) = token(env, "root", &["admin"]).await;
    let ada = |line: &str, code| typed_by(&url, &ada, line, code);
    let bob = |line: &str, code| typed_by(&url, &bob, line, code);

    contains(&ada("approval policy get", 0), &["No request needs a second person."]);
    contains(&ada("approval policy set --permission destroy", 2), &["permission admin"]);
    expect(
        &url,
        "approval policy set --permission destroy --expires-in 30m",
        0,
        &["destroy", "30 min"],
    );

    let dry = ada("reimage m-1 --image rhel-9 --dry-run", 0);
    contains(&dry, &["needs the approval of a second person (destroy)", "farrier approve"]);
    let refusal = ada("reimage m-1 --image rhel-9", 2);
    let line = |name: &str| {
        let found = refusal.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{name} is not in:\n{refusal}")).to_string()
    };
    let approve = line("next: ").split("   #").next().unwrap().replacen("farrier ", "", 1);
    let again = line("afterwards: ").replacen("farrier ", "", 1);
    contains(&refusal, &["REIMAGE on m-1 needs the approval of a second person: apr-"]);
    let id = approve.strip_prefix("approve ").unwrap();

    contains(&bob("approval list", 0), &[id, "pending", "ada", "REIMAGE on m-1"]);
    let shown = bob(&format!("approval get {id}"), 0);
    contains(&shown, &["What it would do:", "parameter image_ref=rhel-9", "(destructive)"]);
    contains(&ada(&approve, 2), &["needs another person"]);
    contains(&typed_by(&url, &ada_again, &approve, 2), &["needs another person"]);
    contains(&bob(&format!("{approve} --dry-run"), 0), &["would be approved"]);
    contains(&bob(&approve, 0), &["approved (REIMAGE on m-1, requested by ada)"]);
    contains(&ada(&again, 0), &["SUCCEEDED"]);
    let used = ada("approval list --all -o json", 0);
    contains(&used, &["\"used\"", "\"op-"]);
    contains(&ada("approval list", 0), &["no approvals"]);

    // The audit log has the request, the approval and the start, each with the approval.
    let audit = expect(&url, &format!("audit list --object {id}"), 0, &[]);
    let calls =
        ["APPROVAL_REQUIRED", "ApprovalService/GrantApproval", "MachineService/ReimageMachine"];
    contains(&audit, &calls);

    // Break-glass: only an administrator, and everybody sees it until it is reviewed.
    let fire = "reimage m-1 --image rhel-9 --override approval --reason fire";
    contains(&ada(fire, 2), &["permission admin"]);
    contains(&typed_by(&url, &root, fire, 0), &["SUCCEEDED"]);
    contains(&bob("why", 1), &["break-glass: root started REIMAGE on m-1", "fire"]);
    contains(&expect(&url, "audit list --user root -o wide", 0, &[]), &["fire", "apr-"]);
    let open = bob("approval list", 0);
    let broken = open.split_whitespace().find(|word| word.starts_with("apr-")).unwrap();
    contains(&typed_by(&url, &root, &format!("approval approve {broken}"), 2), &["another person"]);
    contains(&bob(&format!("approval approve {broken} --comment seen"), 0), &["reviewed"]);
    assert!(!bob("why", 0).contains("break-glass"));
    by_program(&mut api, &url).await;
}

/// The reason and the ids are in the details, for programs; a denied request stays denied.
async fn by_program(api: &mut Clients, url: &str) {
    let request = || v1::ReimageMachineRequest {
        machine_id: "m-1".into(),
        request_id: "by-program".into(),
        image_ref: "ubuntu-2204".into(),
        ..Default::default()
    };
    let answer = api.machines.reimage_machine(request()).await;
    let status = refused(answer, Code::FailedPrecondition, &["second person"]);
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!(info.reason, "APPROVAL_REQUIRED");
    assert_eq!(info.metadata["request_id"], "by-program");
    assert_eq!(info.metadata["gate"], "approval");
    let id = &info.metadata["approval_id"];
    expect(url, &format!("approval deny {id} --comment no"), 0, &["denied"]);
    let answer = api.machines.reimage_machine(request()).await;
    let status = refused(answer, Code::FailedPrecondition, &["admin denied REIMAGE on m-1"]);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "APPROVAL_DENIED");
}

/// Killed between the approval and the start: the approval is there, and starts the request once.
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_survives_a_killed_server() {
    let (env, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    let (_, ada) = token(&env, "ada", &["operator"]).await;
    let (_, bob) = token(&env, "bob", &["operator"]).await;
    expect(&env.server.url(), "approval policy set --permission destroy", 0, &[]);
    let ask = "reimage m-1 --image rhel-9 --request-id r-1 --no-wait";
    let refusal = typed_by(&env.server.url(), &ada, ask, 2);
    let id = refusal.split_whitespace().find(|word| word.starts_with("apr-")).unwrap();
    typed_by(&env.server.url(), &bob, &format!("approve {id}"), 0);
    let server = Server::start(env.server.kill());
    let url = server.url();
    let first = typed_by(&url, &ada, ask, 0);
    let again = typed_by(&url, &ada, ask, 0);
    let run = |text: &str| {
        let found = text.split_whitespace().find(|word| word.starts_with("op-"));
        found.unwrap_or_else(|| panic!("{text}")).to_string()
    };
    assert_eq!(run(&first), run(&again));
    let runs = typed_by(&url, &ada, "ops --filter type=REIMAGE -o json", 0);
    assert_eq!(runs.matches("\"operation_id\"").count(), 1, "{runs}");
    let mut bobs = Clients::on(channel_with(&url, &bob).await);
    bobs.finished(&run(&first)).await;
}

/// The dry run of a request on a node has the notes of the operation that it would start.
#[test]
fn a_dry_run_on_a_node_names_the_second_person() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    person.line("site create site-lab --provider sim", 0);
    person.line("machine register m-1 --provider sim --cluster cluster-a", 0);
    person.line("node onboard m-1 --site site-lab", 0);
    let node = node_of(&person, "m-1");
    person.line(&format!("node drain {node}"), 0);
    person.line("approval policy set --permission operate", 0);
    let line = format!("node reactivate {node}");
    let dry = person.line(&format!("{line} --dry-run"), 0);
    contains(&dry, &["needs the approval of a second person (operate)", "farrier approve"]);
    contains(&person.line(&line, 2), &["needs the approval of a second person"]);
}
