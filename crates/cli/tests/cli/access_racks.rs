//! A rack, a power shelf and a switch with machines of two teams, and a caller who is limited to
//! one of them.

use crate::access::{farrier, token};
use crate::api::{TestServer, labelled, on_both, slow};
use crate::fleet::{Clients, NO_CONTEXTS, TEST_TIMEOUT};
use crate::unreadable::expect;
use proto::v1;
use std::time::Instant;

const ML: &str = "labels.team=ml";

/// Waits until the output of a command has these words.
#[track_caller]
fn until(url: &str, line: &str, words: &str) {
    let started = Instant::now();
    loop {
        let said = expect(url, line, 0, &[]);
        if said.contains(words) {
            return;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{line} never says {words}:\n{said}");
    }
}

/// A rack with a machine of each team. Its power shelf and its switch have the label of one.
async fn shared_rack(url: &str, admin: &mut Clients) {
    expect(url, "rack create rack-1 --hardware-type gb200 --expect-machines 2", 0, &[]);
    for (slot, (id, team)) in [("own-1", "ml"), ("other-1", "web")].into_iter().enumerate() {
        let mut machine = labelled(id, &[("team", team)]);
        let spec = machine.spec.as_mut().unwrap();
        (spec.rack_id, spec.slot) = ("rack-1".into(), Some(slot as i32 + 1));
        admin.settled(machine).await;
    }
    let place = "--provider sim --rack rack-1 --label team=ml";
    expect(url, &format!("switch register sw-1 {place}"), 0, &[]);
    expect(url, &format!("power-shelf register ps-1 {place}"), 0, &[]);
    until(url, "rack get rack-1", "Ready");
    until(url, "switch get sw-1", "Ready");
    until(url, "power-shelf get ps-1", "Ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rack_of_two_teams_is_for_neither_alone() {
    on_both("zero", two_teams).await;
}

async fn two_teams(env: &TestServer, mut admin: Clients) {
    let url = env.server.url();
    shared_rack(&url, &mut admin).await;
    let (_, secret) = token(env, "ada", &[]).await;
    for role in ["operator", "rack-operator"] {
        let bind = ["--server", &url, "role", "bind", role, "user:ada", "--selector", ML];
        let root = [("FARRIER_TOKEN", crate::fleet::TEST_TOKEN), ("FARRIER_CONTEXTS", NO_CONTEXTS)];
        let (code, out, err) = farrier(&bind, &root);
        assert_eq!(code, 0, "{out}{err}");
    }
    let variables = [("FARRIER_TOKEN", secret.as_str()), ("FARRIER_CONTEXTS", NO_CONTEXTS)];
    let ada = |line: &str| {
        let words = ["--server", &url].into_iter().chain(line.split_whitespace());
        let (code, out, err) = farrier(&words.collect::<Vec<_>>(), &variables);
        let said = out + &err;
        // Whatever is asked, the machine of the other team is not named.
        assert!(!said.contains("other-1"), "{line}: {said}");
        (code, said)
    };
    for line in [
        "rack maintenance start rack-1",
        "rack maintenance start rack-1 --machine own-1",
        "rack maintenance start rack-1 --switch sw-1",
        "rack maintenance start rack-1 --activity power --power reset",
        "rack reprovision rack-1",
        "rack maintenance status rack-1",
        "rack get rack-1",
        "power-shelf maintenance power-off --power-shelf-id ps-1",
        "power-shelf maintenance power-off --power-shelf-id ps-1 --override in-service --reason x",
        "power-shelf retry ps-1",
        "switch retry sw-1",
        "component firmware update --compute-trays own-1 --target-version fw-1",
    ] {
        for dry in ["", " --dry-run"] {
            let (code, said) = ada(&format!("{line}{dry}"));
            assert_eq!(code, 2, "{line}{dry}: {said}");
        }
    }
    for (line, words) in [
        ("rack maintenance start rack-1 --machine own-1 --dry-run", "whole fleet"),
        ("rack maintenance start rack-1 --machine own-1", "whole fleet"),
        ("power-shelf maintenance power-off --power-shelf-id ps-1 --dry-run", "whole fleet"),
        ("power-shelf maintenance power-off --power-shelf-id ps-1", "whole fleet"),
        ("switch retry sw-1 --dry-run", "whole fleet"),
        ("switch retry sw-1", "whole fleet"),
    ] {
        let (_, said) = ada(line);
        assert!(said.contains(words), "{line}: {said}");
    }
    // Its label makes a device readable, and no more.
    assert_eq!(ada("switch get sw-1").0, 0);
    assert_eq!(ada("power-shelf get ps-1").0, 0);
    held_by_a_rack(&url, &mut admin, &ada).await;
}

/// A maintenance of the rack works on machines of both teams.
async fn held_by_a_rack(url: &str, admin: &mut Clients, ada: &impl Fn(&str) -> (i32, String)) {
    admin.fault(slow("*", "power", 20_000)).await;
    let start = "rack maintenance start rack-1 --activity power --power reset --no-wait";
    let started = expect(url, start, 0, &["op-"]);
    let parent = started.split_whitespace().find(|word| word.starts_with("op-")).unwrap();
    let waited = Instant::now();
    let child = loop {
        let (_, listed) = ada(&format!("operation list --filter part_of={parent} -o json"));
        let all: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        if let [one] = all.as_slice() {
            assert_eq!(one["part_of"], parent, "{one:#}");
            break one["operation_id"].as_str().unwrap().to_string();
        }
        assert!(waited.elapsed() < TEST_TIMEOUT, "{listed}");
    };
    // The parent is not shown, and the part on one's own machine is.
    let (code, said) = ada(&format!("operation get {parent}"));
    assert_eq!(code, 2, "{said}");
    let absent = "op-000000000000000000nn";
    let (_, unknown) = ada(&format!("operation get {absent}"));
    assert_eq!(said.replace(parent, absent), unknown);
    let (code, said) = ada(&format!("operation get {child}"));
    assert_eq!(code, 0, "{said}");
    // Acting on it would act on the whole: that needs the right on every machine of it.
    for line in [format!("cancel {child}"), format!("cancel {parent}")] {
        let (code, said) = ada(&line);
        assert_eq!(code, 2, "{line}: {said}");
    }
    for line in ["reboot own-1", "reboot own-1 --dry-run", "why own-1", "history own-1", "why"] {
        let (_, said) = ada(line);
        assert!(!said.contains(parent), "{line}: {said}");
    }
    // The history says that an operation holds it, and keeps the place of one's own machine.
    let (_, said) = ada("history own-1");
    assert!(said.contains("op-(hidden)"), "{said}");
    let whole = expect(url, "history own-1", 0, &["held by", parent]);
    assert!(!whole.contains("(hidden)"), "{whole}");
    let (code, said) = ada("reboot own-1");
    assert_eq!(code, 2, "{said}");
    admin.sim.delete_faults(v1::DeleteFaultsRequest::default()).await.unwrap();
}

/// The refusal of another person's request may name any object; that of one's own is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_limited_caller_reads_the_refusals_of_its_own_requests_only() {
    on_both("zero", refusals).await;
}

async fn refusals(env: &TestServer, mut admin: Clients) {
    let url = env.server.url();
    for (id, team) in [("own-1", "ml"), ("other-1", "web")] {
        admin.in_maintenance(id).await;
        expect(&url, &format!("machine update {id} --label team={team}"), 0, &[]);
    }
    let (_, secret) = token(env, "ada", &[]).await;
    expect(&url, &format!("role bind operator user:ada --selector {ML}"), 0, &[]);
    let ada = |line: &str| {
        let words = ["--server", &url].into_iter().chain(line.split(' '));
        let variables = [("FARRIER_TOKEN", secret.as_str()), ("FARRIER_CONTEXTS", NO_CONTEXTS)];
        let (_, out, err) = farrier(&words.collect::<Vec<_>>(), &variables);
        out + &err
    };
    expect(&url, "approval policy set --permission destroy", 0, &[]);
    for id in ["other-1", "own-1"] {
        let again = format!("reimage {id} --image rhel-9 --request-id of-both");
        expect(&url, &again, 2, &["needs the approval"]);
    }
    until(&url, "why own-1", "it was REIMAGE on other-1");
    for line in ["why own-1", "why own-1 -o json", "history own-1", "history own-1 --sort ts:desc"]
    {
        let said = ada(line);
        assert!(
            said.contains("objects that you may not see (APPROVAL_REQUIRED)"),
            "{line}: {said}"
        );
        assert!(said.contains("REIMAGE"), "{line}: {said}");
        assert!(!said.contains("other-1"), "{line}: {said}");
    }
    // A message that she was told herself.
    let told = "needs the approval of a second person";
    let said = ada("reimage own-1 --image rhel-9");
    assert!(said.contains(told), "{said}");
    until(&url, "why own-1", "REIMAGE of ada");
    for line in ["why own-1", "history own-1"] {
        let said = ada(line);
        assert!(said.contains(told), "{line}: {said}");
    }
}
