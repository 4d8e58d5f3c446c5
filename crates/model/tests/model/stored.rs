//! Stored runs stay readable: the golden files were written by an earlier version of Farrier.

use crate::support::{at, join, note, spec, wipe};
use crate::walk::states;
use model::effect::{
    CallVerb, ChildRunGroup, ChildRunSpec, ClusterExpectation, DesiredPower, DeviceWork,
    DrainOptions, Effect, FabricGoal, NetbootMode, NodeLabels, PowerOffPolicy, RebootMode,
    RmaAction, Taint, TaintEffect,
};
use model::fault::{Fault, FaultCode};
use model::id::{PlanId, RunId};
use model::plan::{OnFailure, Params, Plan, RunStep, RunType, Step};
use model::run::{
    CallIntent, Failure, Progress, Run, RunSpec, StepPhase, StepState, StopKind, StopRequest,
    Workflow,
};
use model::target::TargetId;

const SPEC: &str = include_str!("golden/run_spec.json");
const PROGRESS: &str = include_str!("golden/progress.json");
/// Each kind as it was first stored, then with its later additions.
const EFFECTS: &str = include_str!("golden/effects.json");
/// A plan from before any additions.
const PLAN: &str = include_str!("golden/plan.json");

fn golden_spec() -> RunSpec {
    let netboot = Effect::Netboot { mode: NetbootMode::Pxe };
    let netboot =
        RunStep { name: "netboot".into(), timeout_seconds: 60, max_retries: 2, effect: netboot };
    RunSpec {
        params: Params::from([("image_ref".into(), "ubuntu-2204".into())]),
        rerun_of: Some(RunId::trusted("op-0")),
        on_failure: OnFailure::EnterMaintenance,
        engine_version: 1,
        ..spec(vec![netboot, wipe(1), join(0), note(0)])
    }
}

fn step(of: usize, undo: bool, state: StepPhase, attempt: u32) -> StepState {
    StepState {
        plan_step: of,
        undo,
        state,
        attempt,
        max_attempt: 3,
        attempt_open: false,
        attempt_since: at(2),
        next_verb: CallVerb::Perform,
        intent: None,
        uncertain_fault: None,
        failed_status_calls: 0,
        not_before: None,
        busy_since: None,
        message: String::new(),
        started_at: None,
        waiting_since: None,
        finished_at: None,
    }
}

/// Every field has a value somewhere.
fn golden_progress() -> Progress {
    let lost = Fault::new(FaultCode::AnswerLost, "the BMC closed the connection");
    Progress {
        workflow: Workflow::Compensating,
        steps: vec![
            StepState {
                message: "boots from the network".into(),
                started_at: Some(at(1)),
                finished_at: Some(at(2)),
                ..step(0, false, StepPhase::Succeeded, 1)
            },
            step(1, false, StepPhase::Failed, 2),
            step(2, false, StepPhase::Waiting, 0),
            StepState {
                attempt_open: true,
                next_verb: CallVerb::GetStatus,
                intent: Some(CallIntent { verb: CallVerb::GetStatus, epoch: 7, at: at(5) }),
                uncertain_fault: Some(lost.clone()),
                failed_status_calls: 2,
                not_before: Some(at(6)),
                ..step(0, true, StepPhase::Running, 1)
            },
        ],
        step_index: 3,
        scan_index: Some(0),
        stop_request: Some(StopRequest {
            kind: StopKind::Cancel,
            reason: "wrong image".into(),
            by: "alice".into(),
            undoing: true,
        }),
        adopted: true,
        started_at: Some(at(1)),
        finished_at: Some(at(9)),
        failure: Some(Failure { fault: lost, step: "undo-netboot".into(), attempts: 1 }),
    }
}

pub fn golden_effects() -> Vec<Effect> {
    let cluster_ref = || "cluster-a".to_string();
    let reboot = |mode, power_off| Effect::Reboot { mode, power_off };
    let off = |power_off| Effect::Rma { action: RmaAction::PowerOff, power_off };
    let join = |labels, taints| Effect::Join {
        cluster_ref: cluster_ref(),
        labels,
        taints,
        kubeadm: Default::default(),
    };
    let drain = |deadline_seconds| Effect::Drain {
        cluster_ref: cluster_ref(),
        deadline_seconds,
        options: DrainOptions::ALL_PODS,
    };
    let say = |graceful_seconds, force| PowerOffPolicy { graceful_seconds, force };
    let taint =
        |key: &str, value: &str, effect| Taint { key: key.into(), value: value.into(), effect };
    let taints =
        vec![taint("gpu", "", TaintEffect::NoSchedule), taint("a", "b", TaintEffect::NoExecute)];
    vec![
        Effect::Ssh { command: "uptime".into(), destructive: true },
        reboot(RebootMode::Bmc, PowerOffPolicy::PROVIDER_DEFAULT),
        reboot(RebootMode::InBand, PowerOffPolicy::PROVIDER_DEFAULT),
        Effect::Netboot { mode: NetbootMode::Disk },
        Effect::Repave { image: "ubuntu-2204".into() },
        join(NodeLabels::new(), Vec::new()),
        Effect::Leave { cluster_ref: cluster_ref(), joined_by: None },
        Effect::Verify {
            cluster_ref: cluster_ref(),
            expect: ClusterExpectation::Drained,
            advisory: true,
        },
        Effect::Net { document: "network: {}".into() },
        off(PowerOffPolicy::PROVIDER_DEFAULT),
        reboot(RebootMode::Bmc, say(Some(0), None)),
        off(say(None, Some(false))),
        join(NodeLabels::from([("zone".into(), "a".into())]), taints),
        drain(None),
        drain(Some(1_770)),
        Effect::Uncordon { cluster_ref: cluster_ref(), own: true },
        Effect::Power { to: DesiredPower::On, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
        Effect::Power { to: DesiredPower::Off, power_off: say(Some(30), Some(true)) },
        device(DeviceWork::Firmware {
            component: "BMC".into(),
            version: "2.1".into(),
            url: "https://fw.example/bmc-2.1".into(),
            sha256: "aa".into(),
        }),
        device(DeviceWork::Read),
        device(DeviceWork::Configure),
        device(DeviceWork::Check {
            firmware: [("BMC".to_string(), "2.1".to_string())].into(),
            power: Some(DesiredPower::On),
        }),
        device(DeviceWork::Fabric { to: FabricGoal::Manager }),
        Effect::ChildRuns { group: golden_group() },
    ]
}

fn device(work: DeviceWork) -> Effect {
    Effect::Device { work }
}

fn golden_group() -> ChildRunGroup {
    let effect = device(DeviceWork::Fabric { to: FabricGoal::Off });
    let step = RunStep { name: "fabric-off".into(), timeout_seconds: 60, max_retries: 1, effect };
    let target = TargetId::from_key("switch:sw-1");
    let parts = vec![ChildRunSpec { target, run_type: RunType::Fabric, steps: vec![step] }];
    ChildRunGroup { child_runs: parts, max_concurrent: 4, skip_if_all_hold: Vec::new() }
}

/// Values without new fields are stored unchanged, so existing rows do not change. Only the options
/// of a drain are always stored.
#[test]
fn effects_are_read_and_written_as_ever() {
    let read: Vec<Effect> = serde_json::from_str(EFFECTS).expect("stored effects are readable");
    assert_eq!(read, golden_effects());
    let mut golden: Vec<serde_json::Value> = serde_json::from_str(EFFECTS).unwrap();
    for drain in golden.iter_mut().filter(|effect| effect["kind"] == "drain") {
        drain["options"] = serde_json::to_value(DrainOptions::ALL_PODS).unwrap();
    }
    assert_eq!(serde_json::to_value(golden_effects()).unwrap(), serde_json::json!(golden));
    for name in Effect::NAMES {
        assert!(read.iter().any(|effect| effect.name() == name), "{name} has no golden form");
    }
}

/// A drain from before there were options evicted all pods. One that is careful stays so.
#[test]
fn a_stored_drain_keeps_its_options() {
    let options = |text: &str| match serde_json::from_str(text).unwrap() {
        Effect::Drain { options, .. } => options,
        other => panic!("{other:?}"),
    };
    assert_eq!(options(r#"{"kind":"drain","cluster_ref":"c"}"#), DrainOptions::ALL_PODS);
    for own in [DrainOptions::default(), DrainOptions::ALL_PODS] {
        let cluster_ref = "c".into();
        let drain = Effect::Drain { cluster_ref, deadline_seconds: None, options: own.clone() };
        assert_eq!(options(&serde_json::to_string(&drain).unwrap()), own);
    }
}

#[test]
fn an_old_plan_is_read_as_it_was_meant() {
    let plan: Plan = serde_json::from_str(PLAN).expect("a stored plan is readable");
    let step = |name: &str, timeout_seconds, max_retries, effect| Step {
        name: name.into(),
        timeout_seconds,
        max_retries,
        effect,
    };
    let power_off = PowerOffPolicy::PROVIDER_DEFAULT;
    let (labels, taints) = (NodeLabels::new(), Vec::new());
    let join =
        Effect::Join { cluster_ref: String::new(), labels, taints, kubeadm: Default::default() };
    let steps = vec![
        step("reboot", Some(300), None, Effect::Reboot { mode: RebootMode::Bmc, power_off }),
        step("join", None, Some(1), join),
        step("off", Some(300), Some(0), Effect::Rma { action: RmaAction::PowerOff, power_off }),
    ];
    let expected = Plan {
        id: PlanId::trusted("plan-mine"),
        display_name: "Mine".into(),
        steps,
        default_for: None,
        built_in: false,
        on_failure: OnFailure::KeepPhase,
    };
    assert_eq!(plan, expected);
    assert!(plan.checked().is_ok());
}

/// When this fails because a field was added, give the field a default and do not change the files:
/// they represent the records in existing databases.
#[test]
fn stored_records_are_read_as_they_were_meant() {
    let spec: RunSpec = serde_json::from_str(SPEC).expect("a stored RunSpec is readable");
    assert_eq!(spec, golden_spec());
    let progress: Progress = serde_json::from_str(PROGRESS).expect("a stored Progress is readable");
    assert_eq!(progress, golden_progress());
}

/// The version that wrote the files can read what is written now: no field was renamed.
#[test]
fn what_is_written_has_every_golden_field() {
    let written = serde_json::to_value(golden_spec()).unwrap();
    contains(&written, &serde_json::from_str(SPEC).unwrap(), "spec");
    let written = serde_json::to_value(golden_progress()).unwrap();
    contains(&written, &serde_json::from_str(PROGRESS).unwrap(), "progress");
}

fn contains(written: &serde_json::Value, golden: &serde_json::Value, path: &str) {
    use serde_json::Value::{Array, Object};
    match (written, golden) {
        (Object(written), Object(golden)) => {
            for (key, value) in golden {
                let path = format!("{path}.{key}");
                contains(written.get(key).unwrap_or_else(|| panic!("{path}")), value, &path);
            }
        }
        (Array(written), Array(golden)) => {
            assert_eq!(written.len(), golden.len(), "{path}");
            for (index, (one, other)) in written.iter().zip(golden).enumerate() {
                contains(one, other, &format!("{path}[{index}]"));
            }
        }
        (written, golden) => assert_eq!(written, golden, "{path}"),
    }
}

#[test]
fn every_reachable_state_survives_the_store() {
    for (run, _) in states(vec![join(0)]) {
        let text = serde_json::to_string(&run.progress).unwrap();
        let back: Progress = serde_json::from_str(&text).unwrap();
        assert_eq!(back, run.progress);
        let spec: RunSpec =
            serde_json::from_str(&serde_json::to_string(&run.spec).unwrap()).unwrap();
        assert_eq!(Run { spec, progress: back, version: run.version }, run);
    }
}
