//! Plans, the history of a run, and `why`.

use crate::api::{
    BUILT_IN_PLANS, TestServer, conditions, fault, field_of, on_both, params, plan, reboot,
    refused, ssh, step,
};
use crate::fleet::{Clients, steps};
use proto::v1;
use proto::v1::run::Phase;
use proto::v1::step::Kind;
use proto::words::WireEnum;
use tonic::Code::{AlreadyExists, InvalidArgument};

fn taint(key: &str, effect: &str) -> v1::NodeTaint {
    v1::NodeTaint { key: key.into(), value: String::new(), effect: effect.into() }
}

fn labelled(key: &str, value: &str) -> v1::KubeadmJoin {
    v1::KubeadmJoin { labels: params(&[(key, value)]), ..Default::default() }
}

fn tainted(key: &str, effect: &str) -> v1::KubeadmJoin {
    v1::KubeadmJoin { taints: vec![taint(key, effect)], ..Default::default() }
}

/// A value that no enum has.
const UNKNOWN: i32 = 99;
const ON: i32 = v1::DesiredPower::On as i32;
const OFF: i32 = v1::DesiredPower::Off as i32;

fn power(to: i32, graceful_seconds: Option<i32>, force: Option<bool>) -> Kind {
    Kind::Power(v1::SetPower { to, graceful_seconds, force })
}

fn drain(deadline_seconds: Option<i32>) -> Kind {
    Kind::Drain(v1::DrainNode { deadline_seconds, ..v1::DrainNode::default() })
}

fn configured(config: &str) -> v1::KubeadmJoin {
    let kubeadm = Some(v1::KubeadmOptions { config: config.into(), ..Default::default() });
    v1::KubeadmJoin { kubeadm, ..Default::default() }
}

/// Plans that are invalid in one field, and the name of that field.
fn wrong_plans() -> Vec<(v1::Plan, String)> {
    let one = |step: v1::Step| plan("mine", vec![step]);
    let good = || step("a", reboot());
    let kind = |kind: Kind| one(step("a", kind));
    let long = |length: usize| "x".repeat(length);
    let in_step = |field: &str| format!("plan.steps[0].{field}");
    let mut wrong = vec![
        (plan("", vec![good()]), "plan.plan_id".into()),
        (plan("a b", vec![good()]), "plan.plan_id".into()),
        (plan(&long(64), vec![good()]), "plan.plan_id".into()),
        (plan("mine", vec![]), "plan.steps".into()),
        (
            plan("mine", (0..65).map(|at| step(&format!("s{at}"), reboot())).collect()),
            "plan.steps".into(),
        ),
        (plan("mine", vec![good(), step("b", reboot()), good()]), "plan.steps[2].name".into()),
        (one(v1::Step { kind: None, ..good() }), in_step("kind")),
        (one(v1::Step { timeout_seconds: Some(0), ..good() }), in_step("timeout_seconds")),
        (one(v1::Step { timeout_seconds: Some(-5), ..good() }), in_step("timeout_seconds")),
        (one(v1::Step { timeout_seconds: Some(i32::MAX), ..good() }), in_step("timeout_seconds")),
        (one(v1::Step { max_retries: Some(-1), ..good() }), in_step("max_retries")),
        (one(v1::Step { max_retries: Some(101), ..good() }), in_step("max_retries")),
        (kind(ssh("")), in_step("ssh.command")),
        (kind(ssh("a\u{0}b")), in_step("ssh.command")),
        (kind(ssh(&long(70_000))), in_step("ssh.command")),
        (
            kind(Kind::Reboot(v1::Reboot { mode: "kick".into(), ..Default::default() })),
            in_step("reboot.mode"),
        ),
        (kind(Kind::Netboot(v1::SetNetboot { mode: "pxe".into() })), in_step("netboot.mode")),
        (kind(Kind::Repave(v1::RepaveImage { image: "a\nb".into() })), in_step("repave.image")),
        (
            kind(Kind::Join(v1::KubeadmJoin { cluster_ref: long(129), ..Default::default() })),
            in_step("join.cluster_ref"),
        ),
        (
            kind(Kind::Verify(v1::VerifyInCluster { expect: UNKNOWN, ..Default::default() })),
            in_step("verify.expect"),
        ),
        (kind(Kind::Net(v1::NetReconfig { document: "\u{7}".into() })), in_step("net.document")),
        (kind(Kind::Rma(v1::RmaAction::default())), in_step("rma.action")),
        (
            kind(Kind::Rma(v1::RmaAction { action: UNKNOWN, ..Default::default() })),
            in_step("rma.action"),
        ),
        (kind(Kind::Join(labelled("zo ne", "a"))), in_step("join.labels")),
        (kind(Kind::Join(labelled("zone", "a b"))), in_step("join.labels[zone]")),
        (kind(Kind::Join(configured("["))), in_step("join.kubeadm.config")),
        (kind(Kind::Join(configured("kind: InitConfiguration"))), in_step("join.kubeadm.config")),
        (kind(Kind::Join(configured(&long(65_537)))), in_step("join.kubeadm.config")),
        (kind(Kind::Join(tainted("gpu", ""))), in_step("join.taints[0].effect")),
        (kind(Kind::Join(tainted("gpu", "NoFun"))), in_step("join.taints[0].effect")),
        (kind(Kind::Join(tainted("-gpu", "NoExecute"))), in_step("join.taints[0].key")),
        (kind(power(0, None, None)), in_step("power.to")),
        (kind(power(UNKNOWN, None, None)), in_step("power.to")),
        (kind(power(OFF, Some(-1), None)), in_step("power.graceful_seconds")),
        (kind(power(OFF, Some(0), Some(false))), in_step("power.graceful_seconds")),
        (kind(power(OFF, Some(4_000), None)), in_step("power.graceful_seconds")),
        (kind(power(ON, Some(5), None)), in_step("power.graceful_seconds")),
        (
            kind(Kind::Reboot(v1::Reboot {
                mode: "in_band".into(),
                force: Some(true),
                ..Default::default()
            })),
            in_step("reboot.force"),
        ),
        (
            kind(Kind::Rma(v1::RmaAction {
                action: v1::RmaActionKind::Record.into(),
                force: Some(true),
                ..Default::default()
            })),
            in_step("rma.force"),
        ),
        (kind(drain(Some(0))), in_step("drain.deadline_seconds")),
        (kind(drain(Some(-1))), in_step("drain.deadline_seconds")),
        (
            one(v1::Step { timeout_seconds: Some(60), ..step("a", drain(Some(60))) }),
            in_step("drain.deadline_seconds"),
        ),
        (
            kind(Kind::Uncordon(v1::UncordonNode { cluster_ref: long(129) })),
            in_step("uncordon.cluster_ref"),
        ),
        (v1::Plan { on_failure: 9, ..one(good()) }, "plan.on_failure".into()),
        (v1::Plan { display_name: long(129), ..one(good()) }, "plan.display_name".into()),
    ];
    for name in ["", "a b", "undo-a", "a\u{1b}", &long(64)] {
        wrong.push((one(step(name, reboot())), in_step("name")));
    }
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_cannot_be_run_is_refused_with_the_field() {
    let (_world, mut api) = TestServer::open("zero").await;
    for (plan, field) in wrong_plans() {
        let shown = format!("{plan:?}");
        let status = refused(api.try_plan(plan).await, InvalidArgument, &[&field]);
        assert_eq!(field_of(&status), field, "{shown}");
        assert!(status.message().len() < 500, "{}", status.message());
    }
    let request = v1::ListPlansRequest::default();
    let plans = api.plans.list_plans(request).await.unwrap().into_inner().plans;
    assert!(plans.iter().all(|plan| plan.built_in), "nothing was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_never_changes() {
    on_both("zero", immutable).await;
}

async fn immutable(_world: &TestServer, mut api: Clients) {
    let kinds = [
        ssh("true"),
        reboot(),
        Kind::Netboot(v1::SetNetboot { mode: "PXE".into() }),
        Kind::Repave(v1::RepaveImage { image: "rhel-9".into() }),
        Kind::Join(v1::KubeadmJoin {
            cluster_ref: "cluster-b".into(),
            labels: params(&[("example.com/zone", "a")]),
            taints: vec![taint("gpu", "NoSchedule")],
            kubeadm: Some(v1::KubeadmOptions {
                config: "kind: JoinConfiguration\n".into(),
                arguments: vec!["--v=5".into()],
                ignore_preflight_errors: vec!["Swap".into()],
            }),
        }),
        Kind::Verify(v1::VerifyInCluster {
            cluster_ref: "cluster-b".into(),
            expect: v1::ClusterExpectation::Ready.into(),
            advisory: false,
        }),
        Kind::Net(v1::NetReconfig { document: "network: {}\n".into() }),
        Kind::Rma(v1::RmaAction { action: v1::RmaActionKind::Record.into(), ..Default::default() }),
        drain(Some(60)),
        power(OFF, Some(30), Some(false)),
        power(ON, None, None),
        Kind::Uncordon(v1::UncordonNode { cluster_ref: "cluster-b".into() }),
        Kind::Reboot(v1::Reboot {
            mode: "bmc".into(),
            graceful_seconds: Some(0),
            force: Some(true),
        }),
    ];
    let all = kinds.into_iter().enumerate().map(|(at, kind)| step(&format!("s{at}"), kind));
    let mut desired = plan("everything", all.collect());
    desired.steps[0].timeout_seconds = Some(7);
    desired.steps[0].max_retries = Some(0);
    let made = api.try_plan(desired.clone()).await.unwrap();
    assert_eq!(made, desired);
    assert_eq!(api.try_plan(desired.clone()).await.unwrap(), made);
    let request = v1::GetPlanRequest { plan_id: "everything".into() };
    assert_eq!(api.plans.get_plan(request).await.unwrap().into_inner(), made);
    let other = v1::Plan { display_name: "Other".into(), ..desired.clone() };
    let words = ["everything", "farrier plan get everything", "new plan_id"];
    refused(api.try_plan(other).await, AlreadyExists, &words);
    let mut other = desired.clone();
    other.steps.pop();
    refused(api.try_plan(other).await, AlreadyExists, &words);
    let stolen = plan("plan-reboot-v1", vec![step("a", ssh("rm -rf /"))]);
    refused(api.try_plan(stolen).await, AlreadyExists, &["plan-reboot-v1"]);

    // A run keeps a copy of its plan, with all defaults resolved.
    api.in_maintenance("m-1").await;
    let run = api.start_plan("m-1", "everything", "r").await.run_id;
    let run = api.finished(&run).await;
    assert_eq!(run.phase(), Phase::Succeeded, "{run:#?}");
    assert_eq!(run.plan_id, "everything");
    let kinds: Vec<&str> = run.steps.iter().map(|step| step.kind.as_str()).collect();
    let expected = [
        "ssh", "reboot", "netboot", "repave", "join", "verify", "net", "rma", "drain", "power",
        "power", "uncordon", "reboot",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(run.plan_steps[0].timeout_seconds, Some(7));
    assert_eq!(
        (run.plan_steps[1].timeout_seconds, run.plan_steps[1].max_retries),
        (Some(600), Some(2))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_without_what_it_needs_is_refused_at_the_start() {
    let (_world, mut api) = TestServer::open("zero").await;
    let mut bare = crate::api::machine("m-1");
    bare.spec.as_mut().unwrap().target_cluster_ref = String::new();
    api.put(bare).await;
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;
    for (id, kind, field) in [
        ("joins", Kind::Join(v1::KubeadmJoin::default()), "machine.spec.target_cluster_ref"),
        ("images", Kind::Repave(v1::RepaveImage::default()), "params[image_ref]"),
        ("nets", Kind::Net(v1::NetReconfig::default()), "params[network]"),
    ] {
        api.try_plan(plan(id, vec![step("a", kind)])).await.unwrap();
        let request = v1::StartRunRequest {
            machine_id: "m-1".into(),
            request_id: id.into(),
            r#type: "UPGRADE".into(),
            plan_id: id.into(),
            ..Default::default()
        };
        let status = refused(api.try_run(request).await, InvalidArgument, &["step a", field]);
        assert_eq!(field_of(&status), field);
    }
    // A built-in plan omits the steps that need a cluster if the machine has none.
    let run = api.done("m-1", "REPAVE", "r").await;
    let names: Vec<String> = steps(&run).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["set-netboot", "repave-os", "reboot"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_has_a_default_plan_that_runs() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.register("m-1").await;
    let plans = api.plans.list_plans(v1::ListPlansRequest::default()).await.unwrap().into_inner();
    assert_eq!(plans.plans.len(), BUILT_IN_PLANS);
    for kind in [
        "ENTER_MAINTENANCE",
        "REPAVE",
        "REBOOT",
        "UPGRADE",
        "NET_RECONFIG",
        "EXIT_MAINTENANCE",
        "ENTER_MAINTENANCE",
        "RMA",
        "EXIT_RMA",
        "POWER",
        "JOIN",
    ] {
        let plan = plans.plans.iter().find(|plan| plan.default_for == kind).unwrap();
        let runs = api.list_runs("").await.len();
        let network = params(&[("network", "network: {version: 2}\n")]);
        let request = v1::StartRunRequest {
            machine_id: "m-1".into(),
            request_id: format!("{kind}-{runs}"),
            r#type: kind.into(),
            params: if kind == "NET_RECONFIG" { network } else { params(&[]) },
            ..Default::default()
        };
        let run = api.try_run(request).await.unwrap().run_id;
        let run = api.finished(&run).await;
        assert_eq!(run.phase(), Phase::Succeeded, "{run:#?}");
        assert_eq!((&run.r#type, &run.plan_id), (&plan.default_for, &plan.plan_id));
        let names: Vec<&String> = run.steps.iter().map(|step| &step.name).collect();
        assert_eq!(names, plan.steps.iter().map(|step| &step.name).collect::<Vec<_>>());
        assert!(run.steps.iter().all(|step| !step.message.is_empty()), "{run:#?}");
    }
    let observed = conditions(&api.machine("m-1").await);
    for (condition, status) in [("Provisioned", true), ("InCustomerCluster", true), ("RMA", false)]
    {
        assert_eq!(observed[condition], status, "{observed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transition_is_written_down() {
    on_both("zero", recording).await;
}

async fn recording(_world: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    let mut request = tonic::Request::new(v1::ReimageMachineRequest {
        machine_id: "m-1".into(),
        request_id: "r".into(),
        image_ref: "rhel-9".into(),
        ..Default::default()
    });
    // A client cannot choose its name.
    request.metadata_mut().insert("farrier-initiator", "ada".parse().unwrap());
    let operation = api.machines.reimage_machine(request).await.unwrap().into_inner();
    assert_eq!(operation.initiator, "admin");
    let run = api.finished(&operation.operation_id).await;
    assert_eq!(run.initiator, "admin");
    let machine = api.machine("m-1").await;
    for (id, last) in [("m-1", machine.status.unwrap().version), (&run.run_id, run.version)] {
        let history = api.history(id).await;
        let versions: Vec<i64> = history.iter().map(|entry| entry.version).collect();
        assert_eq!(versions, (1..=last).collect::<Vec<_>>(), "{id}");
        let times: Vec<_> = history.iter().map(|entry| entry.ts.unwrap()).collect();
        assert!(times.is_sorted_by_key(|at| (at.seconds, at.nanos)), "{id}: {times:?}");
        for entry in &history {
            assert_eq!(entry.object_id, id);
            let causes = ["request", "engine", "probe", "admin"];
            assert!(causes.contains(&entry.cause().word()), "{entry:?}");
            for text in [&entry.state, &entry.actor, &entry.message, &entry.decided_by] {
                assert!(!text.is_empty(), "{entry:?}");
            }
            assert!(entry.decided_by.contains(':'), "a line: {entry:?}");
        }
        assert!(history.iter().any(|entry| entry.actor == "admin"), "{history:#?}");
    }
    let message: Vec<String> =
        api.history(&run.run_id).await.into_iter().map(|entry| entry.message).collect();
    let message = message.join("\n");
    for name in ["accepted", "set-netboot succeeded", "repave-os started", "SUCCEEDED after"] {
        assert!(message.contains(name), "{name:?} is not in:\n{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_looked_at_soon_after_they_are_registered() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.fault(fault("dark*", "probe", "fail", 0)).await;
    let observed = api.settled(crate::api::machine("m-1")).await;
    for (condition, status, reason) in [
        ("Reachable", true, "PingOK"),
        ("BMCReachable", true, "RedfishOK"),
        ("InCustomerCluster", false, "NotJoined"),
    ] {
        let known = observed.status.as_ref().unwrap().conditions.iter();
        let known = known.clone().find(|known| known.r#type == condition).unwrap();
        assert_eq!((known.status, known.reason.as_str()), (status, reason));
        assert!(known.last_transition.is_some());
    }
    let reported = api.history("m-1").await.pop().unwrap();
    assert_eq!((reported.cause().word(), reported.actor.as_str()), ("probe", "observer"));
    api.put(crate::api::machine("dark")).await;
    let affected = api.machine_until("dark", |machine| !conditions(machine).is_empty()).await;
    assert_eq!(conditions(&affected).get("BMCReachable"), Some(&false), "{affected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_says_what_to_type_in_every_state() {
    let (_world, mut api) = TestServer::open("zero").await;
    let id = || "m-1".to_string();
    let mut observed = Vec::new();
    let mut ask = async |api: &mut Clients, id: &str, headline: &str, command: &str| {
        let reported = api.why(id).await;
        assert!(reported.headline.contains(headline), "{headline:?} is not in {reported:#?}");
        let proposed = reported.next_commands.iter().any(|next| next.contains(command));
        assert!(proposed, "{command:?} is not in {reported:#?}");
        assert!(
            reported.next_commands.iter().all(|next| next.starts_with("farrier ")),
            "{reported:#?}"
        );
        observed.push(reported.headline.clone());
        reported
    };
    api.settled(crate::api::machine("m-1")).await;
    ask(&mut api, "m-1", "new", "farrier enter-maintenance m-1").await;
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;
    ask(&mut api, "m-1", "in maintenance", "farrier exit-maintenance m-1").await;

    api.fault(fault("m-1", "repave", "hang", 1)).await;
    let run = api.start("m-1", "REPAVE", "hangs").await.run_id;
    api.at_step(&run, "repave-os").await;
    for id in ["m-1", run.as_str()] {
        let reported = ask(&mut api, id, "repave-os", &format!("farrier cancel {run}")).await;
        assert!(
            reported.waiting_for.contains("repave-os") && reported.since.is_some(),
            "{reported:#?}"
        );
        assert!(reported.normal.contains("30m") && !reported.overdue, "{reported:#?}");
        assert_eq!((&reported.run_id, reported.machine_id.as_str()), (&run, "m-1"));
        assert_eq!(reported.held_by, "one");
    }
    api.cancel(&run).await.unwrap();
    api.finished(&run).await;
    ask(&mut api, &run, "was canceled", &format!("farrier operation rerun {run}")).await;

    api.fault(fault("m-1", "reboot", "fail", 3)).await;
    let run = api.start("m-1", "REBOOT", "fails").await.run_id;
    api.finished(&run).await;
    for id in ["m-1", run.as_str()] {
        let reported =
            ask(&mut api, id, "failed", &format!("farrier operation retry-step {run}")).await;
        assert_eq!(reported.fault, "effect-failed");
        assert_eq!(reported.failed, "the simulated hardware failed");
        let request = v1::GetFaultPageRequest { code: reported.fault };
        let page = api.explain.get_fault_page(request).await.unwrap().into_inner();
        assert_eq!(page.class(), v1::FaultClass::Retryable);
        assert!(page.markdown.contains("## What to do"), "{}", page.markdown);
    }
    let run = api.done("m-1", "REBOOT", "succeeds").await.run_id;
    ask(&mut api, &run, "succeeded", "farrier get m-1").await;
    // The write that was canceled had not begun.
    ask(&mut api, "m-1", "in maintenance", "farrier reimage m-1").await;
    api.done("m-1", "REPAVE", "again").await;
    api.done("m-1", "EXIT_MAINTENANCE", "exit").await;
    ask(&mut api, "m-1", "ready for work", "farrier get m-1").await;
    let gates = vec!["in-service".to_string()];
    let gate_override = Some(v1::GateOverride { gates, reason: "fan".into() });
    let request = v1::SetRmaRequest {
        machine_id: id(),
        reason: "fan".into(),
        gate_override: gate_override.clone(),
        ..Default::default()
    };
    api.admin.set_rma(request).await.unwrap();
    ask(&mut api, "m-1", "blocked", "farrier admin clear-rma m-1").await;
    let request = v1::SetRetiredRequest {
        machine_id: id(),
        reason: "old".into(),
        gate_override,
        ..Default::default()
    };
    api.admin.set_retired(request).await.unwrap();
    ask(&mut api, "m-1", "Retired", "farrier admin clear-retired m-1").await;
    assert_eq!(observed.len(), 12);
    let request = v1::GetFaultPageRequest { code: "nonsense".into() };
    refused(
        api.explain.get_fault_page(request).await,
        InvalidArgument,
        &["code", "bmc-unreachable"],
    );
}
