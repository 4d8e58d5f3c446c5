//! Drain, power and RMA through the real server: gates, refusals, the resulting machine state, and
//! a server that is killed in the middle.

use crate::api::{TestServer, conditions, fault, is, on_both, params, refused, slow, states};
use crate::audit::audit;
use crate::fleet::{Clients, Server, Setup, steps};
use proto::v1;
use proto::v1::run::Phase;
use tonic::Code::{AlreadyExists, FailedPrecondition, InvalidArgument};
use tonic::Status;

const OFF: &str = "plan-power-off-v1";
const CYCLE: &str = "plan-power-cycle-v1";

fn power(plan: &str, request: &str, pairs: &[(&str, &str)]) -> v1::StartRunRequest {
    v1::StartRunRequest {
        machine_id: "m-1".into(),
        request_id: request.into(),
        r#type: "POWER".into(),
        plan_id: plan.into(),
        params: params(pairs),
        gate_override: Some(v1::GateOverride {
            gates: vec!["in-service".into()],
            reason: "a test".into(),
        }),
        ..Default::default()
    }
}

/// Runs a power plan and returns the message of its step.
async fn switched(api: &mut Clients, plan: &str, request: &str) -> String {
    let run = api.try_run(power(plan, request, &[])).await.unwrap().run_id;
    let run = api.finished(&run).await;
    assert_eq!(run.phase(), Phase::Succeeded, "{run:#?}");
    run.steps[0].message.clone()
}

async fn enter(api: &mut Clients, request: &str, drain: bool) -> Result<v1::Operation, Status> {
    let (machine_id, request_id) = ("m-1".into(), request.into());
    let request =
        v1::EnterMaintenanceRequest { machine_id, request_id, drain, ..Default::default() };
    api.machines.enter_maintenance(request).await.map(|answer| answer.into_inner())
}

/// Brings the machine into service in its cluster.
async fn in_cluster(api: &mut Clients) {
    api.in_maintenance("m-1").await;
    api.done("m-1", "REPAVE", "image").await;
    api.done("m-1", "EXIT_MAINTENANCE", "serve").await;
}

fn reason(machine: &v1::Machine, condition: &str) -> String {
    let status = machine.status.clone().unwrap_or_default();
    let found = status.conditions.into_iter().find(|one| one.r#type == condition);
    found.map(|one| one.reason).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn power_has_the_gates_of_what_it_does() {
    on_both("zero", gates).await;
}

async fn gates(_world: &TestServer, mut api: Clients) {
    api.register("m-1").await;
    // Switching on is always allowed; switching off has the gate of a reboot.
    assert_eq!(switched(&mut api, "", "on").await, "It was on already");
    for plan in [OFF, CYCLE] {
        let request = v1::StartRunRequest { gate_override: None, ..power(plan, plan, &[]) };
        let words = ["FACTORY_READY", "farrier enter-maintenance m-1"];
        refused(api.try_run(request).await, FailedPrecondition, &words);
    }
    in_cluster(&mut api).await;
    // A machine in service keeps its power without an override; a reboot passes as documented.
    for plan in [OFF, CYCLE] {
        let request = v1::StartRunRequest { gate_override: None, ..power(plan, "plain", &[]) };
        let words = ["m-1 is in service and not drained", "gate in-service"];
        refused(api.try_run(request).await, FailedPrecondition, &words);
    }
    api.done("m-1", "REBOOT", "reboot").await;
    assert_eq!(switched(&mut api, OFF, "off").await, "The power is off");
    assert!(!is(&api.machine("m-1").await, "Reachable"));
    assert_eq!(switched(&mut api, OFF, "off-2").await, "It was off already");
    assert_eq!(switched(&mut api, "", "on-2").await, "The power is on");
    assert!(switched(&mut api, CYCLE, "cycle").await.starts_with("Booted"));
    for (pairs, field) in [
        (&[("graceful_seconds", "soon")][..], "params[graceful_seconds]"),
        (&[("force", "maybe")], "params[force]"),
        (&[("graceful_seconds", "0"), ("force", "false")], "params[graceful_seconds]"),
    ] {
        refused(api.try_run(power(OFF, "bad", pairs)).await, InvalidArgument, &[field]);
    }
    // The parameters are stored in the step, and its time limit covers the graceful period.
    let patient = power(OFF, "patient", &[("graceful_seconds", "900"), ("force", "false")]);
    let run = api.try_run(patient.clone()).await.unwrap();
    let Some(v1::step::Kind::Power(step)) = run.plan_steps[0].kind.clone() else { panic!() };
    assert_eq!((step.graceful_seconds, step.force), (Some(900), Some(false)));
    assert_eq!(run.plan_steps[0].timeout_seconds, Some(1_200));
    api.finished(&run.run_id).await;
    assert_eq!(api.try_run(patient).await.unwrap().run_id, run.run_id, "the same request");
    let other = power(OFF, "patient", &[("graceful_seconds", "5")]);
    refused(api.try_run(other).await, AlreadyExists, &["patient"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_drains_and_uncordons_when_asked() {
    let (_world, mut api) = TestServer::open("zero").await;
    in_cluster(&mut api).await;
    let plainly = enter(&mut api, "plainly", false).await.unwrap().operation_id;
    let run = api.finished(&plainly).await;
    assert_eq!((run.steps.len(), run.plan_id.as_str()), (1, "plan-enter-maintenance-v1"));
    assert!(!is(&api.machine("m-1").await, "Drained"), "draining is its owner's to do");
    refused(enter(&mut api, "plainly", true).await, AlreadyExists, &["plainly"]);

    let draining = enter(&mut api, "draining", true).await.unwrap().operation_id;
    let run = api.finished(&draining).await;
    let expected = [("drain".to_string(), "SUCCEEDED"), ("check-drained".into(), "SUCCEEDED")];
    assert_eq!(steps(&run), expected);
    assert_eq!(run.steps[0].kind, "drain");
    let machine = api.machine("m-1").await;
    assert!(is(&machine, "Drained"), "{machine:#?}");
    let (machine_id, request_id) = ("m-1".into(), "back".into());
    let request =
        v1::ExitMaintenanceRequest { machine_id, request_id, uncordon: true, ..Default::default() };
    let exit = api.machines.exit_maintenance(request).await.unwrap().into_inner();
    let run = api.finished(&exit.operation_id).await;
    assert_eq!(run.steps[0].message, "The node takes work again");
    let machine = api.machine("m-1").await;
    assert_eq!(states(&machine), ("READY", "EFFECTIVE_STATE_IDLE"));
    assert!(!is(&machine, "Drained"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_in_no_cluster_is_drained_as_it_is() {
    let (_world, mut api) = TestServer::open("zero").await;
    let spec = v1::MachineSpec { provider: "sim".into(), ..Default::default() };
    api.put(v1::Machine { machine_id: "m-1".into(), spec: Some(spec), ..Default::default() }).await;
    let entered = enter(&mut api, "drained", true).await.unwrap().operation_id;
    let run = api.finished(&entered).await;
    assert_eq!(steps(&run), [("check-drained".to_string(), "SUCCEEDED")]);
    assert!(run.steps[0].message.contains("in no cluster"), "{run:#?}");
    let drain = v1::step::Kind::Drain(v1::DrainNode::default());
    let own = crate::api::plan("own", vec![crate::api::step("drain", drain)]);
    api.try_plan(own).await.unwrap();
    let run = api.start_plan("m-1", "own", "own").await.run_id;
    let run = api.finished(&run).await;
    assert!(run.steps[0].message.contains("in no cluster"), "{run:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_drain_says_so_and_is_tried_again() {
    let (_world, mut api) = TestServer::open("zero").await;
    in_cluster(&mut api).await;
    let message = "shop/db-0 (needs 2 healthy pods and has 2)".into();
    api.fault(v1::SimFault { message, ..fault("m-1", "drain", "fail", 0) }).await;
    let draining = enter(&mut api, "drained", true).await.unwrap().operation_id;
    let run = api.finished(&draining).await;
    assert_eq!(run.phase(), Phase::Failed, "{run:#?}");
    let why = api.why("m-1").await;
    assert_eq!(why.fault, "eviction-blocked", "{why:#?}");
    assert!(why.failed.contains("shop/db-0"), "{why:#?}");
    let next = format!("farrier operation retry-step {draining}");
    assert!(why.next_commands.contains(&next), "{why:#?}");
    assert_eq!(states(&api.machine("m-1").await), ("READY", "EFFECTIVE_STATE_ATTENTION"));
    api.clear_faults().await;
    let request = v1::RetryStepRequest { run_id: draining.clone(), ..Default::default() };
    api.runs.retry_step(request).await.unwrap();
    assert_eq!(api.finished(&draining).await.phase(), Phase::Succeeded);
    assert_eq!(states(&api.machine("m-1").await).0, "MAINTENANCE");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_drain_gives_the_node_back() {
    let (_world, mut api) = TestServer::open("zero").await;
    in_cluster(&mut api).await;
    api.fault(fault("m-1", "verify", "hang", 1)).await;
    let draining = enter(&mut api, "drained", true).await.unwrap().operation_id;
    api.at_step(&draining, "check-drained").await;
    assert!(is(&api.machine("m-1").await, "Drained"));
    api.cancel(&draining).await.unwrap();
    let run = api.finished(&draining).await;
    assert_eq!(run.phase(), Phase::Canceled);
    let undo = run.steps.iter().find(|step| step.undo).unwrap();
    assert_eq!((undo.name.as_str(), undo.kind.as_str()), ("undo-drain", "uncordon"));
    let machine = api.machine("m-1").await;
    assert!(!is(&machine, "Drained"), "{machine:#?}");
    assert_eq!(states(&machine).0, "READY");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_to_its_vendor_and_comes_back() {
    on_both("zero", there_and_back).await;
}

async fn there_and_back(_world: &TestServer, mut api: Clients) {
    in_cluster(&mut api).await;
    api.done("m-1", "ENTER_MAINTENANCE", "again").await;
    let refusal = api.try_start("m-1", "EXIT_RMA", "early").await;
    refused(refusal, FailedPrecondition, &["not flagged RMA", "farrier get m-1"]);
    let run = api.done("m-1", "RMA", "rma").await;
    let names: Vec<String> = steps(&run).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["drain", "record", "power-off", "mark"]);
    let machine = api.machine("m-1").await;
    assert!(is(&machine, "RMA") && is(&machine, "Drained") && !is(&machine, "Reachable"));
    let words = ["flagged RMA", "farrier admin clear-rma m-1"];
    refused(api.try_run(power("", "on", &[])).await, FailedPrecondition, &words);
    // In RMA, only a plan that changes nothing on the machine may start.
    let wipe = v1::StartRunRequest {
        machine_id: "m-1".into(),
        request_id: "wipe".into(),
        r#type: "EXIT_RMA".into(),
        plan_id: "plan-repave-v1".into(),
        params: params(&[("image_ref", "x")]),
        ..Default::default()
    };
    let words = ["step set-netboot", "farrier machine exit-rma m-1"];
    refused(api.try_run(wipe).await, FailedPrecondition, &words);

    // The host does not respond at first, as during a boot.
    api.fault(fault("m-1", "ssh", "fail", 3)).await;
    let run = api.done("m-1", "EXIT_RMA", "back").await;
    let names: Vec<String> = steps(&run).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["power-on", "record", "check-host"]);
    assert_eq!(run.steps[2].retry_count, 3);
    let machine = api.machine("m-1").await;
    assert_eq!(states(&machine), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
    assert!(!is(&machine, "RMA") && is(&machine, "Reachable"), "{:?}", conditions(&machine));
    assert_eq!(reason(&machine, "RMA"), format!("Returned:{}", run.run_id));
    // The node is still cordoned: an operator checks it before it serves again.
    assert!(is(&machine, "Drained"));
}

/// A machine returns from RMA to MAINTENANCE, whatever phase it was flagged in.
#[tokio::test(flavor = "multi_thread")]
async fn a_returned_machine_is_in_maintenance() {
    let (_world, mut api) = TestServer::open("zero").await;
    in_cluster(&mut api).await;
    let (machine_id, reason) = ("m-1".into(), "it burns".into());
    let gates = vec!["in-service".to_string()];
    let gate_override = Some(v1::GateOverride { gates, reason: "it burns".into() });
    api.admin
        .set_rma(v1::SetRmaRequest { machine_id, reason, gate_override, ..Default::default() })
        .await
        .unwrap();
    let machine = api.machine("m-1").await;
    assert_eq!(states(&machine), ("READY", "EFFECTIVE_STATE_BLOCKED"));
    api.done("m-1", "EXIT_RMA", "back").await;
    let machine = api.machine("m-1").await;
    assert_eq!(states(&machine), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_to_the_vendor_survives_kill_9_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(Setup::new(dir.path(), "fast"));
    let mut api = server.clients().await;
    in_cluster(&mut api).await;
    api.done("m-1", "ENTER_MAINTENANCE", "again").await;
    for effect in ["drain", "power", "rma"] {
        let rule = v1::SimFault { times: 1, ..slow("m-1", effect, 2_500) };
        api.fault(rule).await;
    }
    let rma = api.start("m-1", "RMA", "rma").await.run_id;
    let mut all = vec![rma.clone()];
    for (run, step) in [(rma.clone(), "drain"), (rma.clone(), "record")] {
        api.at_step(&run, step).await;
        server = Server::start(server.kill());
        api = server.clients().await;
    }
    let done = api.finished(&rma).await;
    assert_eq!(done.phase(), Phase::Succeeded, "{done:#?}");
    let back = api.start("m-1", "EXIT_RMA", "back").await.run_id;
    all.push(back.clone());
    api.at_step(&back, "power-on").await;
    let server = Server::start(server.kill());
    let mut api = server.clients().await;
    assert_eq!(api.finished(&back).await.phase(), Phase::Succeeded);
    audit(&api, &all).await;
    let history = api.history(&rma).await;
    assert!(history.iter().any(|entry| entry.message.contains("took over")), "{history:#?}");
}
