//! Starting operations: races, gates, repeated requests, and every row of the error tables in the
//! specification.

use crate::api::{TestServer, fault, on_both, params, plan, reboot, refused, rma, step};
use crate::fleet::{Clients, Server, Setup};
use proto::v1;
use proto::v1::step::Kind;
use std::collections::BTreeSet;
use tonic::Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound};
use tonic::{Response, Status};

const RACERS: usize = 200;
const CONNECTIONS: usize = 8;

/// Sends the same start over several connections at once; `request` is the request ID of each
/// racer.
async fn race(
    env: &TestServer,
    machine: &str,
    request: impl Fn(usize) -> String,
) -> Vec<Result<v1::Run, Status>> {
    let mut lanes = Vec::new();
    for _ in 0..CONNECTIONS {
        lanes.push(env.server.clients().await);
    }
    let racers: Vec<_> = (0..RACERS)
        .map(|index| {
            let mut api = lanes[index % CONNECTIONS].clone();
            let (machine, request) = (machine.to_string(), request(index));
            tokio::spawn(
                async move { api.try_start(&machine, "ENTER_MAINTENANCE", &request).await },
            )
        })
        .collect();
    let mut answers = Vec::new();
    for racer in racers {
        answers.push(racer.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_racing_starts_make_one_run() {
    on_both("zero", racing_starts).await;
}

async fn racing_starts(env: &TestServer, mut api: Clients) {
    // One request, sent 200 times.
    api.register("m-1").await;
    let answers = race(env, "m-1", |_| "same".into()).await;
    let ids: BTreeSet<String> = answers.into_iter().map(|run| run.unwrap().run_id).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(api.list_runs("machine_id=m-1").await.len(), 1);
    api.finished(ids.first().unwrap()).await;

    // 200 requests for one machine: the first one holds it.
    api.fault(fault("m-2*", "verify", "hang", 0)).await;
    api.register("m-2").await;
    let answers = race(env, "m-2", |index| format!("r-{index}")).await;
    let (accepted, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let [Ok(holder)] = &accepted[..] else { panic!("{} were accepted", accepted.len()) };
    assert_eq!(lost.len(), RACERS - 1);
    for loser in lost {
        refused(loser, FailedPrecondition, &[&holder.run_id, "farrier why"]);
    }
    assert_eq!(api.list_runs("machine_id=m-2").await.len(), 1);
    assert_eq!(api.machine("m-2").await.status.unwrap().active_run_id, holder.run_id);
    api.cancel(&holder.run_id).await.unwrap();
    let ended = api.finished(&holder.run_id).await;
    assert_eq!(ended.phase(), v1::run::Phase::Canceled);
}

/// Starts an operation by a customer's call or by `StartRun`.
async fn start_operation(
    api: &mut Clients,
    verb: &str,
    machine: &str,
    request: &str,
) -> Result<String, Status> {
    let (machine_id, request_id) = (machine.to_string(), request.to_string());
    let machines = &mut api.machines;
    let operation = match verb {
        "RebootMachine" => {
            let request = v1::RebootMachineRequest { machine_id, request_id, ..Default::default() };
            machines.reboot_machine(request).await
        }
        "ReimageMachine" => {
            let image_ref = "ubuntu-2204".into();
            let request = v1::ReimageMachineRequest {
                machine_id,
                request_id,
                image_ref,
                ..Default::default()
            };
            machines.reimage_machine(request).await
        }
        "EnterMaintenance" => {
            let request =
                v1::EnterMaintenanceRequest { machine_id, request_id, ..Default::default() };
            machines.enter_maintenance(request).await
        }
        "ExitMaintenance" => {
            let request =
                v1::ExitMaintenanceRequest { machine_id, request_id, ..Default::default() };
            machines.exit_maintenance(request).await
        }
        run_type => {
            let network = params(&[("network", "network: {}")]);
            let request = v1::StartRunRequest {
                machine_id,
                request_id,
                r#type: run_type.into(),
                params: if run_type == "NET_RECONFIG" { network } else { params(&[]) },
                ..Default::default()
            };
            return api.try_run(request).await.map(|run| run.run_id);
        }
    };
    operation.map(|answer| answer.into_inner().operation_id)
}

const VERBS: [&str; 12] = [
    "RebootMachine",
    "ReimageMachine",
    "EnterMaintenance",
    "ExitMaintenance",
    "REBOOT",
    "REPAVE",
    "REIMAGE",
    "ENTER_MAINTENANCE",
    "EXIT_MAINTENANCE",
    "UPGRADE",
    "NET_RECONFIG",
    "RMA",
];

const ENTER: [&str; 2] = ["EnterMaintenance", "ENTER_MAINTENANCE"];
const REBOOT: [&str; 2] = ["RebootMachine", "REBOOT"];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_found() {
    let (_world, mut api) = TestServer::open("zero").await;
    for verb in VERBS {
        let answer = start_operation(&mut api, verb, "nonexistent", "r").await;
        refused(answer, NotFound, &["no machine nonexistent", "farrier list"]);
    }
    let request = v1::GetMachineRequest { machine_id: "nonexistent".into(), ..Default::default() };
    refused(api.machines.get_machine(request).await, NotFound, &["nonexistent", "farrier list"]);
    let machine = Some(crate::api::machine("nonexistent"));
    let request = v1::UpdateMachineRequest {
        machine,
        expected_version: 0,
        update_mask: None,
        ..Default::default()
    };
    refused(api.machines.update_machine(request).await, NotFound, &["nonexistent"]);
    api.register("m-1").await;
    let request = v1::StartRunRequest {
        machine_id: "m-1".into(),
        request_id: "r".into(),
        r#type: "REBOOT".into(),
        plan_id: "plan-nine".into(),
        ..Default::default()
    };
    refused(api.try_run(request).await, NotFound, &["plan-nine", "farrier plans"]);
    let request = v1::GetPlanRequest { plan_id: "plan-nine".into() };
    refused(api.plans.get_plan(request).await, NotFound, &["plan-nine", "farrier plans"]);
    let id = || "nonexistent".to_string();
    let answer = api.explain.explain(v1::ExplainRequest { id: id() }).await;
    refused(answer, NotFound, &["nonexistent", "farrier list"]);
    let request = v1::ListHistoryRequest { id: id(), ..Default::default() };
    refused(api.explain.list_history(request).await, NotFound, &["nonexistent"]);
    assert!(api.list_runs("").await.is_empty());
}

/// Calls every method that takes the ID of a run.
async fn call_with_run_id(api: &mut Clients, client: &str, run: &str) -> Result<(), Status> {
    let (run_id, reason, request_id) = (run.to_string(), "test".to_string(), "again".to_string());
    let operation_id = run_id.clone();
    let runs = &mut api.runs;
    match client {
        "GetOperation" => {
            let request = v1::GetOperationRequest { operation_id };
            api.operations.get_operation(request).await.map(drop)
        }
        "CancelOperation" => {
            let request = v1::CancelOperationRequest { operation_id, reason, dry_run: false };
            api.machines.cancel_operation(request).await.map(drop)
        }
        "StreamOperationLogs" => {
            let request = v1::StreamOperationLogsRequest { operation_id, ..Default::default() };
            api.operations.stream_operation_logs(request).await.map(drop)
        }
        "GetRun" => runs.get_run(v1::GetRunRequest { run_id }).await.map(drop),
        "CancelRun" => runs
            .cancel_run(v1::CancelRunRequest { run_id, reason, ..Default::default() })
            .await
            .map(drop),
        "StreamRunLogs" => {
            let request = v1::StreamRunLogsRequest { run_id, ..Default::default() };
            runs.stream_run_logs(request).await.map(drop)
        }
        "RetryStep" => runs
            .retry_step(v1::RetryStepRequest { run_id, reason, ..Default::default() })
            .await
            .map(drop),
        "ResumeRun" => runs
            .resume_run(v1::ResumeRunRequest { run_id, reason, ..Default::default() })
            .await
            .map(drop),
        "Rerun" => runs
            .rerun(v1::RerunRequest { run_id, request_id, reason, ..Default::default() })
            .await
            .map(drop),
        "RestartClean" => {
            let request =
                v1::RestartCleanRequest { run_id, request_id, reason, ..Default::default() };
            runs.restart_clean(request).await.map(drop)
        }
        "AdoptObservedState" => {
            let request = v1::AdoptObservedStateRequest { run_id, reason, ..Default::default() };
            runs.adopt_observed_state(request).await.map(drop)
        }
        "MarkManual" => runs
            .mark_manual(v1::MarkManualRequest { run_id, reason, ..Default::default() })
            .await
            .map(drop),
        other => panic!("there is no call {other}"),
    }
}

const RUN_METHODS: [&str; 12] = [
    "GetOperation",
    "CancelOperation",
    "StreamOperationLogs",
    "GetRun",
    "CancelRun",
    "StreamRunLogs",
    "RetryStep",
    "ResumeRun",
    "Rerun",
    "RestartClean",
    "AdoptObservedState",
    "MarkManual",
];

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_looked_up_by_every_method() {
    let (_world, mut api) = TestServer::open("zero").await;
    for client in RUN_METHODS {
        let unknown = call_with_run_id(&mut api, client, "op-nobody").await;
        refused(unknown, NotFound, &["op-nobody", "farrier operation list"]);
        let field = if client.contains("Operation") { "operation_id" } else { "run_id" };
        refused(
            call_with_run_id(&mut api, client, "").await,
            InvalidArgument,
            &[field, "required"],
        );
        let malformed = call_with_run_id(&mut api, client, "op-\u{7}").await;
        refused(malformed, InvalidArgument, &[field]);
    }
    // A run that has ended cannot be stopped or continued.
    api.in_maintenance("m-1").await;
    let run = api.done("m-1", "REBOOT", "r").await.run_id;
    for client in ["CancelOperation", "CancelRun", "RetryStep", "ResumeRun", "AdoptObservedState"] {
        let ended = call_with_run_id(&mut api, client, &run).await;
        refused(ended, FailedPrecondition, &[&run, "already ended SUCCEEDED", "farrier operation"]);
    }
    refused(
        call_with_run_id(&mut api, "MarkManual", &run).await,
        FailedPrecondition,
        &["already ended"],
    );
    // A run that has not ended is neither restarted nor continued.
    api.fault(fault("m-1", "reboot", "hang", 0)).await;
    let run = api.start("m-1", "REBOOT", "r-2").await.run_id;
    for client in ["Rerun", "RestartClean", "AdoptObservedState", "RetryStep", "ResumeRun"] {
        refused(
            call_with_run_id(&mut api, client, &run).await,
            FailedPrecondition,
            &[&run, "still at work"],
        );
    }
    assert_eq!(api.run(&run).await.steps[0].retry_count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_unknown_fields_are_named() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.register("m-1").await;
    let long = "x".repeat(129);
    for verb in VERBS {
        let answer = start_operation(&mut api, verb, "m-1", "").await;
        refused(answer, InvalidArgument, &["request_id is required"]);
        refused(
            start_operation(&mut api, verb, "", "r").await,
            InvalidArgument,
            &["machine_id is required"],
        );
        for request in [" r", "r\n", "a\u{0}b", long.as_str()] {
            let answer = start_operation(&mut api, verb, "m-1", request).await;
            refused(answer, InvalidArgument, &["request_id"]);
        }
        for machine in ["a b", "-x", "m\u{1b}[2J", "../m", long.as_str()] {
            let answer = start_operation(&mut api, verb, machine, "r").await;
            refused(answer, InvalidArgument, &["machine_id"]);
        }
    }
    let start = |kind: &str, plan: &str, pairs: &[(&str, &str)]| v1::StartRunRequest {
        machine_id: "m-1".into(),
        request_id: "r".into(),
        r#type: kind.into(),
        plan_id: plan.into(),
        params: params(pairs),
        ..Default::default()
    };
    let image = "i".repeat(129);
    let network = "n".repeat(70_000);
    let ubuntu = Kind::Repave(v1::RepaveImage { image: "ubuntu-2204".into() });
    api.try_plan(plan("own-image", vec![step("write", ubuntu)])).await.unwrap();
    for (request, field) in [
        (start("", "", &[]), "type"),
        (start("DANCE", "", &[]), "type"),
        (start("reboot", "", &[]), "type"),
        (start("NET_RECONFIG", "", &[("network", "a\u{0}b")]), "params[network]"),
        (start("REBOOT", "a b", &[]), "plan_id"),
        (start("REBOOT", "", &[("colour", "red")]), "params[colour]"),
        (start("REPAVE", "", &[("image_ref", "a\nb")]), "params[image_ref]"),
        (start("REPAVE", "", &[("image_ref", &image)]), "params[image_ref]"),
        (start("REBOOT", "", &[("image_ref", "rhel-9")]), "params[image_ref]"),
        (start("REPAVE", "own-image", &[("image_ref", "rhel-9")]), "params[image_ref]"),
        (start("NET_RECONFIG", "", &[]), "params[network]"),
        (start("NET_RECONFIG", "", &[("network", &network)]), "params[network]"),
    ] {
        let status = refused(api.try_run(request).await, InvalidArgument, &[field]);
        assert_eq!(crate::api::field_of(&status), field);
    }
    for answer in [
        api.machines.register_machine(v1::RegisterMachineRequest::default()).await,
        api.machines.update_machine(v1::UpdateMachineRequest::default()).await,
        api.machines.get_machine(v1::GetMachineRequest::default()).await,
    ] {
        refused(answer, InvalidArgument, &["machine", "required"]);
    }
    let nameless = v1::UpdateMachineRequest {
        machine: Some(v1::Machine::default()),
        expected_version: 0,
        update_mask: None,
        ..Default::default()
    };
    let answer = api.machines.update_machine(nameless).await;
    refused(answer, InvalidArgument, &["machine.machine_id is required"]);
    refused(
        api.plans.get_plan(v1::GetPlanRequest::default()).await,
        InvalidArgument,
        &["plan_id is required"],
    );
    refused(
        api.plans.create_plan(v1::CreatePlanRequest::default()).await,
        InvalidArgument,
        &["plan is required"],
    );
    // The refused requests left nothing behind.
    assert!(api.list_runs("").await.is_empty());
    assert_eq!(api.machine("m-1").await.status.unwrap().active_run_id, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_phase_opens_its_own_gates() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.register("m-1").await;
    for verb in VERBS.into_iter().filter(|verb| !ENTER.contains(verb)) {
        let answer = start_operation(&mut api, verb, "m-1", verb).await;
        refused(answer, FailedPrecondition, &["FACTORY_READY", "farrier enter-maintenance m-1"]);
    }
    api.in_service("m-1").await;
    let open = [ENTER, REBOOT].concat();
    for verb in VERBS.into_iter().filter(|verb| !open.contains(verb)) {
        let answer = start_operation(&mut api, verb, "m-1", &format!("ready-{verb}")).await;
        let words = ["needs phase MAINTENANCE", "phase READY", "farrier enter-maintenance m-1"];
        refused(answer, FailedPrecondition, &words);
    }
    api.done("m-1", "REBOOT", "reboot").await;
    // An operation holds the machine: every gate refuses and names the holder.
    api.fault(fault("m-1", "verify", "hang", 1)).await;
    let holder = api.start("m-1", "ENTER_MAINTENANCE", "holder").await.run_id;
    for verb in VERBS {
        let answer = start_operation(&mut api, verb, "m-1", &format!("busy-{verb}")).await;
        refused(answer, FailedPrecondition, &[&holder, &format!("farrier why {holder}")]);
    }
    api.cancel(&holder).await.unwrap();
    api.finished(&holder).await;
    assert_eq!(api.list_runs("machine_id=m-1").await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_plan_carries_a_destructive_step_past_the_gate() {
    let (_world, mut api) = TestServer::open("zero").await;
    let kinds = [
        ("repaves", Kind::Repave(v1::RepaveImage { image: "rhel-9".into() })),
        ("nets", Kind::Net(v1::NetReconfig { document: "network: {}".into() })),
        ("marks", rma(v1::RmaActionKind::Mark)),
        ("powers-off", rma(v1::RmaActionKind::PowerOff)),
    ];
    let mut plans = vec!["plan-repave-v1", "plan-rma-v1"];
    for (id, kind) in kinds {
        api.try_plan(plan(id, vec![step("a", reboot()), step("b", kind)])).await.unwrap();
        plans.push(id);
    }
    api.in_service("served").await;
    api.register("new").await;
    for id in ["served", "new"] {
        for (plan, kind) in plans.iter().flat_map(|plan| [(plan, "REBOOT"), (plan, ENTER[1])]) {
            let request = v1::StartRunRequest {
                machine_id: id.into(),
                request_id: format!("{plan}-{kind}"),
                r#type: kind.into(),
                plan_id: plan.to_string(),
                params: match plan.contains("repave") {
                    true => params(&[("image_ref", "rhel-9")]),
                    false => params(&[]),
                },
                ..Default::default()
            };
            let words = ["MAINTENANCE", &format!("farrier enter-maintenance {id}")];
            refused(api.try_run(request).await, FailedPrecondition, &words);
        }
    }
    assert!(api.list_runs("machine_id=new").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_answered_with_what_the_request_made() {
    on_both("zero", replays).await;
}

async fn replays(_world: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    let image = |image: &str, kind: &str| v1::StartRunRequest {
        machine_id: "m-1".into(),
        request_id: "deploy-1".into(),
        r#type: kind.into(),
        params: params(&[("image_ref", image)]),
        ..Default::default()
    };
    let first = api.try_run(image("rhel-9", "REPAVE")).await.unwrap();
    // The same run is returned while it is active, after it has ended, and when a gate would refuse
    // it.
    let again = api.try_run(image("rhel-9", "REPAVE")).await.unwrap();
    assert_eq!(again.run_id, first.run_id);
    api.finished(&first.run_id).await;
    api.done("m-1", "EXIT_MAINTENANCE", "exit").await;
    let refusal = api.try_start("m-1", "REPAVE", "deploy-2").await;
    refused(refusal, FailedPrecondition, &["READY"]);
    let again = api.try_run(image("rhel-9", "REPAVE")).await.unwrap();
    assert_eq!((&again.run_id, again.phase()), (&first.run_id, v1::run::Phase::Succeeded));
    // The alias of the type and the customer's call return the same run.
    let again = api.try_run(image("rhel-9", "REIMAGE")).await.unwrap();
    assert_eq!(again.run_id, first.run_id);
    let reimage = |image: &str| v1::ReimageMachineRequest {
        machine_id: "m-1".into(),
        request_id: "deploy-1".into(),
        image_ref: image.into(),
        ..Default::default()
    };
    let again = api.machines.reimage_machine(reimage("rhel-9")).await.unwrap().into_inner();
    assert_eq!(again.operation_id, first.run_id);
    let named = v1::StartRunRequest { plan_id: first.plan_id.clone(), ..image("rhel-9", "REPAVE") };
    assert_eq!(api.try_run(named).await.unwrap().run_id, first.run_id);
    // The same request ID for a different request is refused, and the refusal names the first run.
    let words = [first.run_id.as_str(), "deploy-1", "farrier operation get"];
    refused(api.try_run(image("rhel-8", "REPAVE")).await, AlreadyExists, &words);
    let answer = api.machines.reimage_machine(reimage("ubuntu-2204")).await;
    refused(answer.map(Response::into_inner), AlreadyExists, &words);
    refused(api.try_start("m-1", "REBOOT", "deploy-1").await, AlreadyExists, &words);
    refused(
        start_operation(&mut api, "RebootMachine", "m-1", "deploy-1").await,
        AlreadyExists,
        &words,
    );
    // A request ID is only unique per machine.
    api.in_maintenance("m-2").await;
    let other = start_operation(&mut api, "ReimageMachine", "m-2", "deploy-1").await.unwrap();
    assert_ne!(other, first.run_id);
    assert_eq!(api.list_runs("request_id=deploy-1 AND machine_id=m-1").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_and_a_run_are_one_record() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    let operation = start_operation(&mut api, "ReimageMachine", "m-1", "r").await.unwrap();
    let run = api.finished(&operation).await;
    let request = v1::GetOperationRequest { operation_id: operation.clone() };
    let operation = api.operations.get_operation(request).await.unwrap().into_inner();
    assert_eq!(
        (&operation.operation_id, &operation.machine_id, &operation.request_id),
        (&run.run_id, &run.machine_id, &run.request_id)
    );
    assert_eq!((operation.r#type().as_str_name(), run.r#type.as_str()), ("REIMAGE", "REPAVE"));
    assert_eq!(operation.phase().as_str_name(), run.phase().as_str_name());
    assert_eq!((&operation.params, operation.version), (&run.params, run.version));
    assert_eq!(operation.params["image_ref"], "ubuntu-2204");
    assert_eq!(
        (operation.created_at, operation.started_at, operation.finished_at),
        (run.created_at, run.started_at, run.finished_at)
    );
    let times: Vec<_> = [run.created_at, run.started_at, run.finished_at]
        .map(|at| at.map(|at| (at.seconds, at.nanos)).unwrap())
        .to_vec();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(run.current_step, "");
    assert!(run.error.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_outlives_a_new_default_image() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let mut api = server.clients().await;
    api.in_maintenance("m-1").await;
    let first = api.done("m-1", "REPAVE", "r").await.run_id;
    let config = "[defaults]\nimage_ref = \"rhel-9\"".into();
    let server = Server::start(Setup { config, ..server.terminate() });
    let mut api = server.clients().await;
    assert_eq!(api.try_start("m-1", "REPAVE", "r").await.unwrap().run_id, first);
}
