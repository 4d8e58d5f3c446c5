//! Reprovisioning of hosts in simulated time: both branches, retries, cancel, and their records.

use crate::clients::operator;
use crate::test_env::{Process, TestEnv, simulate};
use engine::host::{HostView, Reprovision};
use model::effect::{CallVerb, DeviceWork, Effect, EffectKey, ProviderAnswer, ProviderCall};
use model::firmware::{Firmware, FirmwareComponent};
use model::host::{FirmwareCheck, HostState, MAX_FIRMWARE_UPGRADE_RETRIES, RETRY_INTERVAL};
use model::id::{FirmwareId, MachineId, RunId};
use model::machine::MachineSpec;
use model::plan::RunType;
use model::run::{Run, RunPhase};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use providers::sim::{self, FaultRule};
use providers::{Journal, Provider, Target};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{AppliedQuery, Result, StoreError};
use tokio::time::sleep;

const MACHINE: &str = "m-1";
/// Longer than anything here takes, apart from retries.
const SOON: Duration = Duration::from_secs(300);

/// Selects the firmware that was applied to the machine.
fn on_machine() -> AppliedQuery {
    AppliedQuery { device: Some(TargetId::from(&machine())), ..AppliedQuery::default() }
}

fn machine() -> MachineId {
    MachineId::trusted(MACHINE)
}

async fn env_with_firmware() -> (TestEnv, Process) {
    let env = TestEnv::new(7).await;
    let process = env.boot("a").await;
    env.register(&process.engine, MACHINE).await;
    let component = |name: &str, version: &str| FirmwareComponent {
        name: name.into(),
        version: version.into(),
        url: "https://files.example/x".into(),
        sha256: "ab".repeat(32),
    };
    let firmware = Firmware {
        id: FirmwareId::trusted("fw-2"),
        hardware_type: "x".into(),
        description: String::new(),
        components: BTreeMap::from([(
            TargetKind::Machine,
            vec![component("BMC", "2.0"), component("BIOS", "1.0")],
        )]),
        is_default: true,
        available: true,
        created_at: Timestamp::default(),
        version: 0,
    };
    process.engine.firmware().create(firmware, operator()).await.expect("created");
    (env, process)
}

async fn reprovision(process: &Process, request_id: &str, dry_run: bool) -> Result<HostView> {
    let requested = Reprovision {
        machine: machine(),
        firmware: Some(FirmwareId::trusted("fw-2")),
        request_id: request_id.into(),
        by: "ada".into(),
    };
    process.engine.with_dry_run(dry_run).hosts().reprovision(requested).await
}

async fn state(process: &Process) -> HostState {
    process.engine.hosts().get(&machine()).await.expect("a host").host.state
}

async fn firmware_runs(env: &TestEnv) -> Vec<Run> {
    let runs = env.machine_data(MACHINE).await.runs.into_iter().map(|stored| stored.run);
    runs.filter(|run| run.spec.run_type == RunType::Firmware).collect()
}

fn break_firmware(env: &TestEnv, action: sim::Action, times: u32) {
    let rule = FaultRule { effect: "firmware".into(), times, ..FaultRule::new(action) };
    env.sim.add_fault(rule).expect("a rule");
}

/// Puts a version on the machine without Farrier.
async fn install_by_hand(env: &TestEnv, component: &str, version: &str) {
    let work = DeviceWork::Firmware {
        component: component.into(),
        version: version.into(),
        url: String::new(),
        sha256: String::new(),
    };
    let key = EffectKey::new(&RunId::trusted("by-hand"), component, 1);
    let call = ProviderCall {
        key,
        verb: CallVerb::Perform,
        effect: Effect::Device { work },
        log_offset_bytes: 0,
    };
    let target = Target { id: TargetId::from(&machine()), spec: MachineSpec::default() };
    let (journal, _lines) = Journal::new();
    let answer = env.sim.call(&target, &call, &journal).await;
    assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
}

async fn alerted(env: &TestEnv) -> bool {
    let machine = env.machine(MACHINE).await;
    !machine.health.messages().is_empty()
}

#[test]
fn firmware_is_upgraded_once_and_recorded() {
    simulate(async {
        let (env, process) = env_with_firmware().await;
        let preview = reprovision(&process, "", true).await.expect("a preview");
        let FirmwareCheck::Install { known, steps, .. } = &preview.check else {
            panic!("{preview:?}")
        };
        assert_eq!((known.len(), steps.len()), (2, 2), "{known:?}");
        assert_eq!(firmware_runs(&env).await.len(), 0, "a dry run does nothing");
        assert_eq!(state(&process).await, HostState::Ready);

        for _ in 0..2 {
            reprovision(&process, "first", false).await.expect("accepted, and replayed");
        }
        sleep(SOON).await;
        assert_eq!(state(&process).await, HostState::Ready);
        let runs = firmware_runs(&env).await;
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].phase(), RunPhase::Succeeded);
        assert_eq!(env.machine(MACHINE).await.active_run, None);
        assert!(!alerted(&env).await);

        let applied = process.engine.firmware().applied(on_machine(), 10).await;
        let applied = applied.expect("a history");
        let reported: Vec<_> = applied
            .iter()
            .map(|one| {
                (one.component.as_str(), one.previous.as_str(), one.version.as_str(), one.changed)
            })
            .collect();
        // Newest first; versions that were already installed are marked.
        assert_eq!(reported, [("BIOS", "1.0", "1.0", false), ("BMC", "1.0", "2.0", true)]);

        let host = process.engine.hosts().get(&machine()).await.expect("a host").host;
        assert_eq!(host.facts.firmware.get("BMC").map(String::as_str), Some("2.0"));
    });
}

/// The stored inventory may be outdated: the device is read each time.
#[test]
fn the_installed_version_is_read_from_the_device() {
    simulate(async {
        let (env, process) = env_with_firmware().await;
        let versions = async |request: &str| {
            reprovision(&process, request, false).await.expect("accepted");
            sleep(SOON).await;
            assert_eq!(state(&process).await, HostState::Ready);
            let applied = process.engine.firmware().applied(on_machine(), 2).await;
            let applied = applied.expect("a history").into_iter();
            let reported =
                applied.map(|one| (one.component, one.previous, one.version, one.changed));
            reported.collect::<Vec<_>>()
        };
        let reported = |component: &str, previous: &str, version: &str, changed| {
            (component.to_string(), previous.to_string(), version.to_string(), changed)
        };
        let same = reported("BIOS", "1.0", "1.0", false);
        assert_eq!(versions("first").await, [same.clone(), reported("BMC", "1.0", "2.0", true)]);
        let preview = reprovision(&process, "", true).await.expect("a preview");
        let FirmwareCheck::Install { known, .. } = &preview.check else { panic!("{preview:?}") };
        assert!(known[0].contains("last seen at BIOS 1.0, BMC 2.0"), "{known:?}");
        assert_eq!(versions("second").await, [same.clone(), reported("BMC", "2.0", "2.0", false)]);
        assert_eq!(firmware_runs(&env).await.len(), 2);
        // An operator installs another version by hand.
        install_by_hand(&env, "BMC", "1.5").await;
        assert_eq!(versions("third").await, [same, reported("BMC", "1.5", "2.0", true)]);
    });
}

#[test]
fn a_failure_is_retried_three_times() {
    simulate(async {
        let (env, process) = env_with_firmware().await;
        break_firmware(&env, sim::Action::Fail, 0);
        reprovision(&process, "first", false).await.expect("accepted");
        for tries in 1..=MAX_FIRMWARE_UPGRADE_RETRIES + 1 {
            sleep(SOON).await;
            assert_eq!(firmware_runs(&env).await.len() as u32, tries);
            assert!(alerted(&env).await);
            let HostState::FailedFirmwareUpgrade { retry_count, cause } = state(&process).await
            else {
                panic!("{:?}", state(&process).await)
            };
            assert_eq!(retry_count, tries - 1);
            assert_eq!(cause.code, "effect-failed");
            sleep(RETRY_INTERVAL - SOON).await;
        }
        sleep(RETRY_INTERVAL * 10).await;
        let tries = MAX_FIRMWARE_UPGRADE_RETRIES as usize + 1;
        assert_eq!(firmware_runs(&env).await.len(), tries, "it waits for the operator");
        let reported = process.engine.explain(MACHINE).await.expect("an explanation").explanation;
        assert!(reported.headline.contains("FailedFirmwareUpgrade"), "{reported:?}");
        assert!(
            reported.next_commands.iter().any(|one| one.contains("reprovision m-1")),
            "{reported:?}"
        );

        // A new request starts over without waiting, and its success clears the alert.
        env.sim.clear_faults(None).expect("cleared");
        reprovision(&process, "second", false).await.expect("accepted after a failure");
        sleep(SOON).await;
        assert_eq!(state(&process).await, HostState::Ready);
        assert_eq!(firmware_runs(&env).await.len(), tries + 1);
        assert!(!alerted(&env).await);
    });
}

/// An effect that may have happened is never repeated.
#[test]
fn an_unknown_outcome_is_not_retried() {
    simulate(async {
        let (env, process) = env_with_firmware().await;
        // Its answer is lost, and its status cannot be read.
        break_firmware(&env, sim::Action::Drop, 1);
        let unseen = FaultRule {
            effect: "firmware".into(),
            verb: CallVerb::GetStatus,
            ..FaultRule::new(sim::Action::Fail)
        };
        env.sim.add_fault(unseen).expect("a rule");
        reprovision(&process, "first", false).await.expect("accepted");
        sleep(RETRY_INTERVAL * 100).await;
        let HostState::FailedFirmwareUpgrade { retry_count, cause } = state(&process).await else {
            panic!("{:?}", state(&process).await)
        };
        assert_eq!((retry_count, cause.code.as_str()), (0, "outcome-unknown"));
        assert_eq!(firmware_runs(&env).await.len(), 1);
    });
}

#[test]
fn reprovisioning_waits_for_a_machine_in_service() {
    simulate(async {
        let (env, process) = env_with_firmware().await;
        let client = crate::clients::Client::new(&process.engine);
        for (run_type, request) in
            [(RunType::EnterMaintenance, "in"), (RunType::ExitMaintenance, "out")]
        {
            let run = client.start(MACHINE, run_type, request.into()).await.expect("accepted");
            client.wait_until_ended(&run).await;
        }
        reprovision(&process, "first", false).await.expect("accepted");
        sleep(SOON).await;
        assert_eq!(state(&process).await, HostState::CheckingFirmwareV2 { retry_count: 0 });
        assert_eq!(firmware_runs(&env).await.len(), 0);
        let reported = process.engine.explain(MACHINE).await.expect("an explanation").explanation;
        assert!(reported.waiting_for.contains("needs phase"), "{reported:?}");
        let refused = reprovision(&process, "second", false).await;
        let Err(StoreError::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.reason.as_str(), "REPROVISION_UNDER_WAY");

        // A record that is requested cannot be deleted, even when another one is the default.
        let id = || FirmwareId::trusted("fw-2");
        let engine = &process.engine;
        let stored = async |reason: &str| {
            let answer = engine.firmware().delete(id(), None, operator()).await;
            let Err(StoreError::Refused(refusal)) = answer else { panic!("{answer:?}") };
            assert_eq!(refusal.reason.as_str(), reason, "{refusal}");
            refusal.message
        };
        stored("FIRMWARE_IS_DEFAULT").await;
        let known = engine.firmware().get(&id()).await.expect("a record");
        let other = Firmware { id: FirmwareId::trusted("fw-3"), ..known };
        engine.firmware().create(other, operator()).await.expect("created");
        let message = stored("FIRMWARE_IN_USE").await;
        assert!(message.contains(MACHINE), "{message}");

        let run = client.start(MACHINE, RunType::EnterMaintenance, "again".into()).await;
        client.wait_until_ended(&run.expect("accepted")).await;
        sleep(SOON).await;
        assert_eq!(state(&process).await, HostState::Ready);
        assert_eq!(firmware_runs(&env).await.len(), 1);
        let gone = process.engine.firmware().delete(id(), None, operator()).await;
        assert_eq!(gone.expect("deleted").id, id());
    });
}

#[test]
fn a_canceled_reprovision_is_not_retried() {
    simulate(async {
        let (env, process) = env_with_firmware().await;
        break_firmware(&env, sim::Action::Fail, 0);
        reprovision(&process, "first", false).await.expect("accepted");
        sleep(SOON).await;
        assert!(matches!(state(&process).await, HostState::FailedFirmwareUpgrade { .. }));
        process.engine.hosts().cancel(&machine(), operator()).await.expect("canceled");
        sleep(SOON).await;
        assert_eq!(state(&process).await, HostState::Ready);
        assert!(!alerted(&env).await);
        sleep(RETRY_INTERVAL * 10).await;
        assert_eq!(firmware_runs(&env).await.len(), 1);
    });
}
