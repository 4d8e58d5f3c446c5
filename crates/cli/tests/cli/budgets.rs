//! Disruption budgets as people type them, and two replicas that admit at the same instant.

use crate::api::{TestServer, on_both, slow};
use crate::api_cli::Terminal;
use crate::fleet::{Clients, replicas};
use tonic::Code;
use tonic_types::StatusExt;

/// Every command of `farrier budget`.
pub fn typed(person: &Terminal) {
    for (line, word) in [
        ("budget create b --max-unavailable 0", "budget.max_unavailable"),
        ("budget create b --max-unavailable 1 --per shelf", "budget.per"),
        ("budget create b --max-unavailable 1 --filter phase=READY", "budget.filter"),
        ("budget create -b --max-unavailable 1", "unexpected argument"),
        ("budget create op-1 --max-unavailable 1", "budget.budget_id"),
        ("budget get b", "farrier budget list"),
        ("budget update b --max-unavailable 1", "farrier budget list"),
        ("budget delete b", "farrier budget list"),
    ] {
        let message = person.line(line, 2);
        assert!(message.contains(word), "{line}: {message}");
    }
    let dry = "budget create typed --max-unavailable 3 --per rack";
    person.check_dry_run(dry, "budget list", &["budget typed would be created", "rack"]);
    for _ in 0..2 {
        assert!(person.line(dry, 0).contains("budget typed is created"));
    }
    let message = person.line("budget create typed --max-unavailable 4 --per rack", 2);
    assert!(message.contains("exists already"), "{message}");
    person.formats("budget list", "typed");
    person.formats("budget list --filter per=rack", "typed");
    person.formats("budget get typed", "typed");
    let message = person.line("budget list --filter colour=red", 2);
    assert!(message.contains("budget_id, per"), "{message}");
    let message = person.line("budget update typed", 2);
    assert!(message.contains("changes nothing"), "{message}");
    let change = "budget update typed --max-unavailable 4";
    person.check_dry_run(change, "budget get typed", &["budget typed would be changed"]);
    let message = person.line("budget update typed --max-unavailable 4 --expected-version 99", 2);
    assert!(message.contains("version"), "{message}");
    assert!(person.line(change, 0).contains("budget typed is changed"));
    let history = person.line("history budget/typed", 0);
    assert!(history.contains("at most 3 per rack of all machines"), "{history}");
    assert!(history.contains("max_unavailable changed from \"3\" to \"4\""), "{history}");
    person.check_dry_run("budget delete typed", "budget get typed", &["would be deleted"]);
    assert!(person.line("budget delete typed", 0).contains("budget typed is deleted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_refuses_and_an_override_passes_it() {
    on_both("zero", refuses_and_is_overridden).await;
}

async fn refuses_and_is_overridden(env: &TestServer, _: Clients) {
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        for machine in ["m-1", "m-2"] {
            person.line(&format!("machine register {machine} --provider sim"), 0);
            person.line(&format!("machine update {machine} --label env=prod"), 0);
            person.line(&format!("enter-maintenance {machine}"), 0);
            person.line(&format!("exit-maintenance {machine}"), 0);
        }
        person.line("budget create prod --filter labels.env=prod --max-unavailable 50%", 0);
        let dry = person.line("enter-maintenance m-1 --dry-run", 0);
        let said = "budget prod: takes 1 machine, 0 of 1 allowed are unavailable now, 0 would be \
                    left";
        assert!(dry.contains(said), "{dry}");
        person.line("enter-maintenance m-1", 0);
        let shown = person.line("budget get prod", 0);
        assert!(shown.contains("m-1") && shown.contains("phase MAINTENANCE"), "{shown}");
        for line in ["reboot m-2", "reboot m-2 --dry-run", "enter-maintenance m-2"] {
            let message = person.line(line, 2);
            for word in [
                "1 of 1 allowed unavailable of 2: m-1 (phase MAINTENANCE)",
                "(gate budget:prod)",
                "--override budget:prod --reason …",
            ] {
                assert!(message.contains(word), "{line}: {word:?} is not in\n{message}");
            }
        }
        // The refusal leaves a trace on the machine.
        let started = std::time::Instant::now();
        while !person.line("why m-2", 0).contains("budget prod") {
            assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT);
        }
        let other = person.line("reboot m-2 --override budget:other --reason fire", 2);
        assert!(other.contains("gate budget:prod"), "{other}");
        person.line("reboot m-2 --override budget:prod --reason fire", 0);
        let runs = person.json("operation list --filter machine_id=m-2");
        let id = runs[0]["operation_id"].as_str().unwrap();
        let history = person.line(&format!("history {id}"), 0);
        assert!(history.contains("gate budget:prod overridden by"), "{history}");
        let entries = person.json("audit list --object m-2").to_string();
        assert!(entries.contains("budget:prod") && entries.contains("fire"), "{entries}");
    })
    .await
    .unwrap();
}

/// Both replicas are asked to reboot every machine at the same instant; one machine is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_never_take_a_budget_past_its_limit() {
    const MACHINES: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let config = "[engine]\neager_in_flight = 0";
    let Some(servers) = replicas(dir.path(), &["one", "two"], config).await else { return };
    let mut first = servers[0].clients().await;
    let names: Vec<String> = (1..=MACHINES).map(|number| format!("m-{number}")).collect();
    for name in &names {
        first.in_maintenance(name).await;
        let run = first.start(name, "EXIT_MAINTENANCE", "back").await.run_id;
        first.finished(&run).await;
    }
    // Nothing ends while the others are asked.
    first.fault(slow("*", "reboot", 60_000)).await;
    let person = Terminal::new(servers[0].url());
    let make = tokio::task::spawn_blocking(move || {
        person.line("budget create all --max-unavailable 1", 0);
    });
    make.await.unwrap();
    let mut asked = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let mut api = servers[number % 2].clients().await;
        let name = name.clone();
        asked.push(tokio::spawn(async move { api.try_start(&name, "REBOOT", "race").await }));
    }
    let mut accepted = 0;
    for one in asked {
        match one.await.unwrap() {
            Ok(_) => accepted += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
                let info = status.get_details_error_info().unwrap();
                assert_eq!(info.reason, "BUDGET_EXHAUSTED");
                assert_eq!(info.metadata["gate"], "budget:all");
            }
        }
    }
    assert_eq!(accepted, 1);
}
