//! The crash matrix of the MAAS provider. Every stage runs once undisturbed while the calls to the
//! state store and to MAAS are counted; then once for each of these calls, with a crash before it
//! and one after it. A process without memory continues as the engine would. The end must be the
//! same, and no destructive effect may happen twice. Then each is stopped instead: a stopped effect
//! must not happen, even if the request was in transit when its caller crashed.

use crate::crash_injector::{CallTarget, CrashInjector, CrashPoint, CrashTiming};
use crate::maas_api::{AnswerLoss, End as Ends, NodeStatus, PlannedOutcomes};
use crate::maas_fixture::{MaasFixture, NODE, SITE, effect};
use crate::maas_machines::RecordingHosts;
use futures_util::stream::{self, StreamExt};
use model::effect::{CallVerb, DesiredPower, Effect, PowerOffPolicy, ProviderAnswer, RebootMode};
use model::fault::EffectOutcome;
use model::node::{NodeStage, NodeState, StageExecutor};
use std::sync::Arc;
use std::time::Duration;

/// The most turns that a scenario may take after its crash.
const MAX_TURNS: usize = 12;
/// The number of scenarios that run at the same time.
const AT_ONCE: usize = 8;

#[derive(Debug, Clone)]
enum Scenario {
    Stage(NodeStage),
    /// An existing record in MAAS that is updated to the desired settings.
    Find,
    Undo(NodeStage),
    /// An effect on a machine that is no node.
    Machine(Effect),
}

impl Scenario {
    fn effect(&self) -> Effect {
        match self {
            Self::Stage(stage) => effect(*stage, false),
            Self::Find => effect(NodeStage::CreateOrFindInMaas, false),
            Self::Undo(stage) => effect(*stage, true),
            Self::Machine(effect) => effect.clone(),
        }
    }

    /// The status in MAAS before the scenario.
    fn status(&self) -> Option<NodeStatus> {
        match self {
            Self::Stage(stage) => match stage {
                NodeStage::CreateOrFindInMaas => None,
                NodeStage::CommissionNode => Some(NodeStatus::New),
                NodeStage::WaitForReady => Some(NodeStatus::Commissioning),
                NodeStage::WaitForDeployed => Some(NodeStatus::Deploying),
                NodeStage::ClassifyDeployFailure | NodeStage::RecoverForDatasourceRetry => {
                    Some(NodeStatus::FailedDeployment)
                }
                NodeStage::EnsureHardwareSyncConfigured
                | NodeStage::WaitForHardwareSyncHealthy
                | NodeStage::ReleaseMaasNode => Some(NodeStatus::Deployed),
                _ => Some(NodeStatus::Ready),
            },
            Self::Undo(NodeStage::CommissionNode) => Some(NodeStatus::Commissioning),
            Self::Undo(NodeStage::DeployViaMaas) | Self::Machine(_) => Some(NodeStatus::Deployed),
            Self::Undo(_) | Self::Find => Some(NodeStatus::Ready),
        }
    }

    /// The number of requests that each change must have had, with any crash.
    fn expected_changes(&self) -> &'static [(&'static str, usize)] {
        match self {
            Self::Stage(NodeStage::DeployViaMaas) => {
                &[("deploy", 1), ("allocate", 1), ("release", 0)]
            }
            Self::Stage(NodeStage::RecoverForDatasourceRetry) => {
                &[("deploy", 1), ("allocate", 1), ("release", 1)]
            }
            Self::Stage(NodeStage::CommissionNode) => &[("commission", 1)],
            Self::Undo(NodeStage::CommissionNode) => &[("abort", 1), ("commission", 0)],
            // The record is created before the machine has a system id.
            Self::Stage(NodeStage::CreateOrFindInMaas) => &[("commission", 0), ("update", 0)],
            Self::Find => &[("create", 0), ("commission", 0), ("delete", 0)],
            Self::Stage(NodeStage::ConfigureStorage) => &[("set_boot_disk", 0), ("deploy", 0)],
            Self::Stage(NodeStage::ReleaseMaasNode) | Self::Undo(NodeStage::DeployViaMaas) => {
                &[("release", 1), ("deploy", 0)]
            }
            Self::Stage(NodeStage::RemoveMaasRecord)
            | Self::Undo(NodeStage::CreateOrFindInMaas) => &[("delete", 1)],
            Self::Stage(NodeStage::PowerOffMaasNode) => &[("power_off", 1), ("power_on", 0)],
            Self::Stage(NodeStage::ApplyRocePhase2 | NodeStage::EnsurePxeInterfaceAuto) => {
                &[("link_subnet", 1)]
            }
            Self::Machine(Effect::Repave { .. }) => {
                &[("deploy", 1), ("allocate", 1), ("release", 1)]
            }
            Self::Machine(Effect::Reboot { .. }) => &[("power_off", 1), ("power_on", 1)],
            Self::Machine(_) => &[("power_off", 1), ("power_on", 0)],
            Self::Stage(_) | Self::Undo(_) => &[],
        }
    }

    /// The status in MAAS afterwards.
    fn expected_status(&self) -> Option<NodeStatus> {
        match self {
            Self::Stage(stage) => match stage {
                NodeStage::CreateOrFindInMaas => Some(NodeStatus::New),
                NodeStage::WaitForDeployed | NodeStage::RecoverForDatasourceRetry => {
                    Some(NodeStatus::Deployed)
                }
                NodeStage::ReleaseMaasNode | NodeStage::WaitForReady => Some(NodeStatus::Ready),
                NodeStage::RemoveMaasRecord => None,
                NodeStage::ClassifyDeployFailure => Some(NodeStatus::FailedDeployment),
                // It depends on the number of reads.
                NodeStage::CommissionNode | NodeStage::DeployViaMaas => self.status(),
                _ => self.status(),
            },
            Self::Undo(NodeStage::CreateOrFindInMaas) => None,
            Self::Undo(NodeStage::CommissionNode) => Some(NodeStatus::New),
            Self::Undo(_) | Self::Find => Some(NodeStatus::Ready),
            Self::Machine(_) => Some(NodeStatus::Deployed),
        }
    }

    /// `before` is how a request loses its answer before its effect.
    async fn fixture(&self, at: Option<CrashPoint>, before: AnswerLoss) -> MaasFixture {
        let injector = CrashInjector::new(at);
        let mut maas = MaasFixture::with(Arc::clone(&injector)).await;
        let Some(status) = self.status() else { return with_crash(maas, injector, before) };
        let id = maas.add(status);
        maas.put_node(NODE, &id, NodeState::Retired);
        if let Self::Stage(NodeStage::ConfigureStorage) = self {
            maas.change_site(|spec| spec.storage_layout = "lvm".into()).await;
        }
        if let Self::Find = self {
            maas.change_site(|spec| spec.tags = vec!["h100".into()]).await;
        }
        if matches!(self, Self::Machine(_)) {
            maas.target.spec.bmc_endpoint = format!("maas://{SITE}/{id}");
            maas.target.spec.ssh_endpoint = "127.0.0.1:9".into();
            maas.hosts = Some(Arc::new(RecordingHosts::default()));
        }
        if matches!(self, Self::Undo(_) | Self::Stage(NodeStage::RecoverForDatasourceRetry)) {
            maas.mark(&id, NODE, "op-1/deploy_via_maas/1");
        }
        let mut env = maas.api.state();
        if let Self::Stage(
            NodeStage::RecoverForDatasourceRetry | NodeStage::ClassifyDeployFailure,
        ) = self
        {
            env.note_event(&id, "Deploying", "");
            env.note(&id, "ERROR", ("Node installation failure", "no datasource found"));
        }
        let machine = env.machines.get_mut(&id).unwrap();
        machine.description = "Made by Farrier for node-1 (op-1/create_or_find_in_maas/1)".into();
        machine.power = "on";
        machine.enable_hw_sync = true;
        machine.last_sync = Some("2026-11-16T10:00:00".into());
        if let Self::Stage(NodeStage::WaitForHardwareSyncHealthy) = self {
            machine.planned.reports_hardware = true;
        }
        if let Self::Stage(NodeStage::DeployViaMaas | NodeStage::CommissionNode) = self {
            machine.planned = PlannedOutcomes {
                deployment: Ends::Stuck,
                commissioning: Ends::Stuck,
                ..PlannedOutcomes::default()
            };
        }
        if let Self::Undo(NodeStage::CommissionNode) = self {
            machine.planned =
                PlannedOutcomes { commissioning: Ends::Stuck, ..PlannedOutcomes::default() };
        }
        drop(env);
        with_crash(maas, injector, before)
    }

    fn check(&self, fixture: &MaasFixture, message: &str) {
        let env = fixture.api.state();
        let id = env.machines.keys().next().cloned();
        let ends = env.machines.values().next().map(|machine| machine.status);
        match self {
            Self::Stage(NodeStage::CommissionNode) => {
                assert_eq!(ends, Some(NodeStatus::Commissioning), "{message}")
            }
            Self::Stage(NodeStage::DeployViaMaas) => {
                assert_eq!(ends, Some(NodeStatus::Deploying), "{message}")
            }
            Self::Stage(_) | Self::Find | Self::Undo(_) | Self::Machine(_) => {
                assert_eq!(ends, self.expected_status(), "{message}")
            }
        }
        assert!(env.machines.len() <= 1, "the record was created twice: {message}");
        // The deleted machine was the first one.
        let id = id.unwrap_or_else(|| "m00001".into());
        if let (Self::Find, Some(machine)) = (self, env.machines.get(&id)) {
            let is = (machine.pool.as_str(), machine.zone.as_str());
            assert_eq!(is, ("gpu", "east"), "{message}");
            assert_eq!(machine.power_parameters["power_pass"], "calvin", "{message}");
            assert!(machine.tags.contains("h100"), "{message}");
            assert_eq!(env.tags.len(), 1, "the tag was made once: {message}");
        }
        if let (Self::Stage(NodeStage::ConfigureStorage), Some(machine)) =
            (self, env.machines.get(&id))
        {
            assert_eq!(machine.layout, "lvm", "{message}");
        }
        for (name, times) in self.expected_changes() {
            assert_eq!(env.count(&id, name), *times, "{name}: {message}");
        }
    }
}

fn with_crash(
    fixture: MaasFixture,
    injector: Arc<CrashInjector>,
    before: AnswerLoss,
) -> MaasFixture {
    fixture.api.state().answer_loss = Some(Arc::new(move || {
        let fall = match injector.count_call(CallTarget::Api)? {
            CrashTiming::Before => before,
            CrashTiming::After => AnswerLoss::After,
        };
        let injector = Arc::clone(&injector);
        Some((fall, Box::new(move || injector.crash())))
    }));
    fixture
}

/// Acts like the engine, beginning with this verb, until the effect is done.
async fn run_to_end(fixture: &MaasFixture, effect: &Effect, mut verb: CallVerb, message: &str) {
    for _ in 0..MAX_TURNS {
        verb = match (verb, fixture.call_effect(verb, effect, 1).await.0) {
            (_, Ok(ProviderAnswer::Done(_))) => return,
            (CallVerb::GetStatus, Ok(ProviderAnswer::UnderWay)) => CallVerb::Follow,
            (CallVerb::GetStatus, Ok(ProviderAnswer::NeverStarted)) => CallVerb::Perform,
            (_, Err(fault)) if fault.code.effect_outcome() == EffectOutcome::Unknown => {
                CallVerb::GetStatus
            }
            (verb, other) => panic!("{verb:?} was answered with {other:?}: {message}"),
        };
    }
    panic!("it did not end in {MAX_TURNS} turns: {message}");
}

async fn resume_after_crash(scenario: &Scenario, point: CrashPoint) -> bool {
    let message = format!("{scenario:?} struck at {point:?}");
    let (fixture, effect) =
        (scenario.fixture(Some(point), AnswerLoss::Before).await, scenario.effect());
    let injector = Arc::clone(&fixture.crash_injector);
    tokio::select! {
        () = run_to_end(&fixture, &effect, CallVerb::Perform, &message) => {}
        () = injector.wait_for_crash() => run_to_end(&fixture, &effect, CallVerb::GetStatus, &message).await,
    }
    scenario.check(&fixture, &message);
    injector.has_crashed()
}

/// Crashes, then stops the effect. Returns whether it crashed.
async fn stop_after_crash(scenario: &Scenario, point: CrashPoint) -> bool {
    let message = format!("{scenario:?} stopped at {point:?}");
    let (mut fixture, effect) =
        (scenario.fixture(Some(point), AnswerLoss::Late).await, scenario.effect());
    let injector = Arc::clone(&fixture.crash_injector);
    tokio::select! {
        () = run_to_end(&fixture, &effect, CallVerb::Perform, &message) => return injector.has_crashed(),
        () = injector.wait_for_crash() => {}
    }
    let observed = |fixture: &MaasFixture| -> Vec<_> {
        let env = fixture.api.state();
        env.machines.values().map(|one| (one.status, one.owner.clone())).collect()
    };
    // A create request has no system id yet.
    let changes = |fixture: &MaasFixture| ["", "m00001"].map(|id| fixture.api.state().changes(id));
    fixture.settings.in_flight_window = Duration::from_secs(3_600);
    for _ in 0..MAX_TURNS {
        match fixture.call_effect(CallVerb::Stop, &effect, 1).await.0 {
            Ok(ProviderAnswer::Done(_)) => return true,
            Ok(ProviderAnswer::Stopped) => {
                let before = observed(&fixture);
                fixture.api.state().execute_in_transit();
                assert_eq!(observed(&fixture), before, "the stopped effect happened: {message}");
                let requested = changes(&fixture);
                let _refused = fixture.call_effect(CallVerb::Perform, &effect, 1).await;
                assert_eq!(changes(&fixture), requested, "it began again: {message}");
                return true;
            }
            // A request in transit has arrived by now, or never will.
            Ok(ProviderAnswer::UnderWay) => {
                fixture.api.state().execute_in_transit();
                fixture.settings.in_flight_window = Duration::ZERO;
            }
            other => panic!("a stop was answered with {other:?}: {message}"),
        }
    }
    panic!("it did not stop in {MAX_TURNS} turns: {message}");
}

/// All crash points of an undisturbed scenario.
async fn crash_points(scenario: &Scenario) -> Vec<CrashPoint> {
    let message = format!("{scenario:?} undisturbed");
    let fixture = scenario.fixture(None, AnswerLoss::Before).await;
    run_to_end(&fixture, &scenario.effect(), CallVerb::Perform, &message).await;
    scenario.check(&fixture, &message);
    let calls = fixture.crash_injector.calls();
    eprintln!("{scenario:?}: {calls:?}");
    calls
        .iter()
        .flat_map(|(requester, count)| (1..=*count).map(move |call| (*requester, call)))
        .flat_map(|(requester, call)| {
            [CrashTiming::Before, CrashTiming::After].map(|when| CrashPoint {
                target: requester,
                call,
                timing: when,
            })
        })
        .collect()
}

/// The continuation after a crash.
#[derive(Clone, Copy)]
enum AfterCrash {
    Resume,
    Stop,
}

async fn matrix(scenario: Scenario, after: AfterCrash) {
    let points = crash_points(&scenario).await;
    let count = points.len();
    let struck: Vec<bool> = stream::iter(points)
        .map(|point| {
            let scenario = scenario.clone();
            async move {
                match after {
                    AfterCrash::Resume => resume_after_crash(&scenario, point).await,
                    AfterCrash::Stop => stop_after_crash(&scenario, point).await,
                }
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let hit = struck.iter().filter(|struck| **struck).count();
    assert!(count > 0 && hit == count, "{scenario:?} never crashed at {} points", count - hit);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stage_survives_every_crash() {
    for stage in
        NodeStage::ALL.iter().copied().filter(|stage| stage.executor() == StageExecutor::Maas)
    {
        matrix(Scenario::Stage(stage), AfterCrash::Resume).await;
    }
    matrix(Scenario::Find, AfterCrash::Resume).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_survives_every_crash() {
    for stage in NodeStage::ALL.iter().copied().filter(|stage| stage.undoable()) {
        matrix(Scenario::Undo(stage), AfterCrash::Resume).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_behind_maas_survive_every_crash() {
    let power_off = PowerOffPolicy::PROVIDER_DEFAULT;
    for effect in [
        Effect::Repave { image: "ubuntu/jammy".into() },
        Effect::Reboot { mode: RebootMode::Bmc, power_off },
        Effect::Power { to: DesiredPower::Off, power_off },
    ] {
        matrix(Scenario::Machine(effect), AfterCrash::Resume).await;
    }
}

/// Effects that release, create or delete: a stop must not be answered while the request is still
/// in transit.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_effect_does_not_happen_later() {
    let stages = [
        NodeStage::CreateOrFindInMaas,
        NodeStage::CommissionNode,
        NodeStage::DeployViaMaas,
        NodeStage::RecoverForDatasourceRetry,
        NodeStage::ReleaseMaasNode,
        NodeStage::RemoveMaasRecord,
    ];
    let undone =
        NodeStage::ALL.iter().copied().filter(|stage| stage.undoable()).map(Scenario::Undo);
    let repave = Scenario::Machine(Effect::Repave { image: "ubuntu/jammy".into() });
    for scenario in stages.into_iter().map(Scenario::Stage).chain(undone).chain([repave]) {
        matrix(scenario, AfterCrash::Stop).await;
    }
}
