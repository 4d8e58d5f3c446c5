//! `farrier sim`, and what the simulated hardware answers to questions of the command line.

use crate::api::TestServer;
use crate::api_cli::Terminal;
use crate::fleet::TEST_TIMEOUT;
use std::time::Instant;

/// A rule that could never apply is refused with the field and what to type.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_names_a_machine_that_is_registered() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        person.line("machine register tray-1 --provider sim", 0);
        person.line("rack create rack-1", 0);
        person.line("switch register sw-1 --provider sim --serial S1", 0);
        for unknown in ["nosuch", "rack-1", "sw-2"] {
            let refused =
                person.line(&format!("sim fault create --machine {unknown} --action fail"), 2);
            for words in ["fault.machine", unknown, "has this id", "farrier list"] {
                assert!(refused.contains(words), "{words:?} is not in\n{refused}");
            }
        }
        assert_eq!(person.json("sim fault list"), serde_json::json!([]));
        for known in ["tray-1", "sw-1", "not-yet-*", "*"] {
            person.line(&format!("sim fault create --machine {known} --action hang"), 0);
        }
        let code = "sim fault create --effect configure_storage --action fail --code seed-failed";
        person.line(code, 0);
        let listed = person.line("sim fault list", 0);
        assert!(listed.lines().next().is_some_and(|head| head.contains("CODE")), "{listed}");
        assert!(listed.contains("seed-failed"), "{listed}");
    })
    .await
    .unwrap();
}

/// A disk write that fails on its way: anyone can see what the record says then.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_write_fails_where_the_rule_says() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        person.line("machine register tray-1 --provider sim", 0);
        person.line("enter-maintenance tray-1", 0);
        let refused =
            person.line("sim fault create --effect power --action fail --at-percent 44", 2);
        for words in ["fault.at_percent", "the effect repave"] {
            assert!(refused.contains(words), "{words:?} is not in\n{refused}");
        }
        let rule = "--effect repave --action fail --at-percent 44 --times 0";
        person.line(&format!("sim fault create --machine tray-1 {rule}"), 0);
        let listed = person.line("sim fault list", 0);
        assert!(listed.contains("44%"), "{listed}");
        person.line("reimage tray-1", 1);
        let told = person.line("why tray-1", 0);
        assert!(told.contains("its disk is half written"), "{told}");
        assert!(told.contains("it stopped at 44 %"), "{told}");
        let list = person.line("list", 0);
        assert!(list.contains("tray-1"), "{list}");
    })
    .await
    .unwrap();
}

/// The operation of a rack calls no hardware itself; the effects are those of its children.
#[tokio::test(flavor = "multi_thread")]
async fn the_effects_of_a_rack_operation_are_those_of_its_children() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        person.line("rack create rack-1 --expect-machines 2", 0);
        for (slot, machine) in ["tray-1", "tray-2"].into_iter().enumerate() {
            let at = format!("--rack rack-1 --slot {}", slot + 1);
            person.line(&format!("machine register {machine} --provider sim {at}"), 0);
        }
        let started = Instant::now();
        while person.json("rack get rack-1")["status"]["state"] != "Ready" {
            assert!(started.elapsed() < TEST_TIMEOUT, "rack-1 is never Ready");
        }
        let run = person.submit("rack maintenance start rack-1 --activity power");
        person.line(&format!("operation watch {run}"), 0);
        let effects = person.line(&format!("sim effects --prefix {run}"), 0);
        for machine in ["tray-1", "tray-2"] {
            assert!(effects.contains(machine), "{effects}");
        }
        let one = person.json(&format!("sim effects --prefix {run} --limit 1"));
        assert_eq!(one.as_array().unwrap().len(), 1, "{one}");
        let other = person.json(&format!("sim effects --prefix {run} --filter machine=tray-9"));
        assert_eq!(other, serde_json::json!([]));
    })
    .await
    .unwrap();
}

/// The dry run of a drain lists the pods, or says that there are none.
#[tokio::test(flavor = "multi_thread")]
async fn the_dry_run_of_a_drain_shows_the_simulated_pods() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        person.line("machine register alone --provider sim", 0);
        person.line("machine register tray-1 --provider sim --cluster cluster-a", 0);
        let drain = |machine: &str| {
            person.line(&format!("enter-maintenance {machine} --drain --dry-run"), 0)
        };
        let alone = drain("alone");
        assert!(alone.contains("in no cluster: there is nothing to drain"), "{alone}");
        let absent = drain("tray-1");
        assert!(absent.contains("no node in cluster-a: there is nothing to drain"), "{absent}");
        person.line("enter-maintenance tray-1", 0);
        person.line("reimage tray-1 --image ubuntu-2204", 0);
        person.line("exit-maintenance tray-1", 0);
        let member = drain("tray-1");
        assert!(member.contains("Pods on tray-1 in cluster-a: 4\n"), "{member}");
        assert!(member.contains("evict       simulated/pod-1\n"), "{member}");
        person.line("enter-maintenance tray-1 --drain", 0);
        let drained = drain("tray-1");
        assert!(drained.contains("Pods on tray-1 in cluster-a: 0\n"), "{drained}");
    })
    .await
    .unwrap();
}
