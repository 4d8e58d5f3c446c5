//! The crash matrix of the MAAS provider. Every stage runs once undisturbed while the calls to the
//! state store and to MAAS are counted; then once for each of these calls, with a crash before it
//! and one after it. A process without memory continues as the engine would. The end must be the
//! same, and no destructive effect may happen twice. Then each is stopped instead: a stopped effect
//! must not happen, even if the request was in transit when its caller crashed.

use crate::maas_api::{End as Ends, Fall, Fate};
use crate::maas_desk::{Desk, NODE, SITE, effect};
use crate::reaper::{Point, Reaper, When, Who};
use futures_util::stream::{self, StreamExt};
use model::effect::{Answer, Effect, PowerOffPolicy, PowerTo, RebootMode, Verb};
use model::fault::Happened;
use model::node::{NodeState, Room, Stage};
use providers::maas::Status;
use std::sync::Arc;
use std::time::Duration;

/// The most turns that a scenario may take after its crash.
const MAX_TURNS: usize = 12;
/// The number of scenarios that run at the same time.
const AT_ONCE: usize = 8;

#[derive(Debug, Clone)]
enum Life {
    Stage(Stage),
    /// An existing record in MAAS that is updated to the desired settings.
    Find,
    Undo(Stage),
    /// An effect on a machine that is no node.
    Machine(Effect),
}

impl Life {
    fn effect(&self) -> Effect {
        match self {
            Self::Stage(stage) => effect(*stage, false),
            Self::Find => effect(Stage::CreateOrFindInMaas, false),
            Self::Undo(stage) => effect(*stage, true),
            Self::Machine(effect) => effect.clone(),
        }
    }

    /// The status in MAAS before the scenario.
    fn status(&self) -> Option<Status> {
        match self {
            Self::Stage(stage) => match stage {
                Stage::CreateOrFindInMaas => None,
                Stage::CommissionNode => Some(Status::New),
                Stage::WaitForReady => Some(Status::Commissioning),
                Stage::WaitForDeployed => Some(Status::Deploying),
                Stage::ClassifyDeployFailure | Stage::RecoverForDatasourceRetry => {
                    Some(Status::FailedDeployment)
                }
                Stage::EnsureHardwareSyncConfigured
                | Stage::WaitForHardwareSyncHealthy
                | Stage::ReleaseMaasNode => Some(Status::Deployed),
                _ => Some(Status::Ready),
            },
            Self::Undo(Stage::CommissionNode) => Some(Status::Commissioning),
            Self::Undo(Stage::DeployViaMaas) | Self::Machine(_) => Some(Status::Deployed),
            Self::Undo(_) | Self::Find => Some(Status::Ready),
        }
    }

    /// How often each change must have been requested, with any crash.
    fn acted(&self) -> &'static [(&'static str, usize)] {
        match self {
            Self::Stage(Stage::DeployViaMaas) => &[("deploy", 1), ("allocate", 1), ("release", 0)],
            Self::Stage(Stage::RecoverForDatasourceRetry) => {
                &[("deploy", 1), ("allocate", 1), ("release", 1)]
            }
            Self::Stage(Stage::CommissionNode) => &[("commission", 1)],
            Self::Undo(Stage::CommissionNode) => &[("abort", 1), ("commission", 0)],
            // The record is created before the machine has a system id.
            Self::Stage(Stage::CreateOrFindInMaas) => &[("commission", 0), ("update", 0)],
            Self::Find => &[("create", 0), ("commission", 0), ("delete", 0)],
            Self::Stage(Stage::ConfigureStorage) => &[("set_boot_disk", 0), ("deploy", 0)],
            Self::Stage(Stage::ReleaseMaasNode) | Self::Undo(Stage::DeployViaMaas) => {
                &[("release", 1), ("deploy", 0)]
            }
            Self::Stage(Stage::RemoveMaasRecord) | Self::Undo(Stage::CreateOrFindInMaas) => {
                &[("delete", 1)]
            }
            Self::Stage(Stage::PowerOffMaasNode) => &[("power_off", 1), ("power_on", 0)],
            Self::Stage(Stage::ApplyRocePhase2 | Stage::EnsurePxeInterfaceAuto) => {
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
    fn ends(&self) -> Option<Status> {
        match self {
            Self::Stage(stage) => match stage {
                Stage::CreateOrFindInMaas => Some(Status::New),
                Stage::WaitForDeployed | Stage::RecoverForDatasourceRetry => Some(Status::Deployed),
                Stage::ReleaseMaasNode | Stage::WaitForReady => Some(Status::Ready),
                Stage::RemoveMaasRecord => None,
                Stage::ClassifyDeployFailure => Some(Status::FailedDeployment),
                // It depends on the number of reads.
                Stage::CommissionNode | Stage::DeployViaMaas => self.status(),
                _ => self.status(),
            },
            Self::Undo(Stage::CreateOrFindInMaas) => None,
            Self::Undo(Stage::CommissionNode) => Some(Status::New),
            Self::Undo(_) | Self::Find => Some(Status::Ready),
            Self::Machine(_) => Some(Status::Deployed),
        }
    }

    /// `before` is how a request loses its answer before its effect.
    async fn desk(&self, at: Option<Point>, before: Fall) -> Desk {
        let reaper = Reaper::new(at);
        let mut desk = Desk::with(Arc::clone(&reaper)).await;
        let Some(status) = self.status() else { return struck_by(desk, reaper, before) };
        let id = desk.add(status);
        desk.put_node(NODE, &id, NodeState::Retired);
        if let Self::Stage(Stage::ConfigureStorage) = self {
            desk.change_site(|spec| spec.storage_layout = "lvm".into()).await;
        }
        if matches!(self, Self::Machine(_)) {
            desk.target.spec.bmc_endpoint = format!("maas://{SITE}/{id}");
        }
        if matches!(self, Self::Undo(_) | Self::Stage(Stage::RecoverForDatasourceRetry)) {
            desk.mark(&id, NODE, "op-1/deploy_via_maas/1");
        }
        let mut world = desk.api.world();
        if let Self::Stage(Stage::RecoverForDatasourceRetry | Stage::ClassifyDeployFailure) = self {
            world.note_event(&id, "Node installation failure", "no datasource found");
        }
        let machine = world.machines.get_mut(&id).unwrap();
        machine.description = "Made by Farrier for node-1 (op-1/create_or_find_in_maas/1)".into();
        machine.power = "on";
        machine.enable_hw_sync = true;
        machine.last_sync = Some(jiff::Timestamp::now().to_string());
        if let Self::Stage(Stage::DeployViaMaas | Stage::CommissionNode) = self {
            machine.fate =
                Fate { deployment: Ends::Stuck, commissioning: Ends::Stuck, ..Fate::default() };
        }
        if let Self::Undo(Stage::CommissionNode) = self {
            machine.fate = Fate { commissioning: Ends::Stuck, ..Fate::default() };
        }
        drop(world);
        struck_by(desk, reaper, before)
    }

    fn check(&self, desk: &Desk, said: &str) {
        let world = desk.api.world();
        let id = world.machines.keys().next().cloned();
        let ends = world.machines.values().next().map(|machine| machine.status);
        match self {
            Self::Stage(Stage::CommissionNode) => {
                assert_eq!(ends, Some(Status::Commissioning), "{said}")
            }
            Self::Stage(Stage::DeployViaMaas) => {
                assert_eq!(ends, Some(Status::Deploying), "{said}")
            }
            Self::Stage(_) | Self::Find | Self::Undo(_) | Self::Machine(_) => {
                assert_eq!(ends, self.ends(), "{said}")
            }
        }
        assert!(world.machines.len() <= 1, "the record was created twice: {said}");
        // The deleted machine was the first one.
        let id = id.unwrap_or_else(|| "m00001".into());
        if let (Self::Find, Some(machine)) = (self, world.machines.get(&id)) {
            let is = (machine.pool.as_str(), machine.zone.as_str());
            assert_eq!(is, ("gpu", "east"), "{said}");
            assert_eq!(machine.power_parameters["power_pass"], "calvin", "{said}");
        }
        if let (Self::Stage(Stage::ConfigureStorage), Some(machine)) =
            (self, world.machines.get(&id))
        {
            assert_eq!(machine.layout, "lvm", "{said}");
        }
        for (name, times) in self.acted() {
            assert_eq!(world.count(&id, name), *times, "{name}: {said}");
        }
    }
}

fn struck_by(desk: Desk, reaper: Arc<Reaper>, before: Fall) -> Desk {
    desk.api.world().falls = Some(Arc::new(move || {
        let fall = match reaper.arrive(Who::Api)? {
            When::Before => before,
            When::After => Fall::After,
        };
        let reaper = Arc::clone(&reaper);
        Some((fall, Box::new(move || reaper.strike())))
    }));
    desk
}

/// Acts like the engine, beginning with this verb, until the effect is done.
async fn live(desk: &Desk, effect: &Effect, mut verb: Verb, said: &str) {
    for _ in 0..MAX_TURNS {
        verb = match (verb, desk.ask_effect(verb, effect, 1).await.0) {
            (_, Ok(Answer::Done(_))) => return,
            (Verb::GetStatus, Ok(Answer::UnderWay)) => Verb::Follow,
            (Verb::GetStatus, Ok(Answer::NeverStarted)) => Verb::Perform,
            (_, Err(fault)) if fault.code.happened() == Happened::Maybe => Verb::GetStatus,
            (verb, other) => panic!("{verb:?} was answered with {other:?}: {said}"),
        };
    }
    panic!("it did not end in {MAX_TURNS} turns: {said}");
}

async fn die_at(life: &Life, point: Point) -> bool {
    let said = format!("{life:?} struck at {point:?}");
    let (desk, effect) = (life.desk(Some(point), Fall::Before).await, life.effect());
    let reaper = Arc::clone(&desk.reaper);
    tokio::select! {
        () = live(&desk, &effect, Verb::Perform, &said) => {}
        () = reaper.wait() => live(&desk, &effect, Verb::GetStatus, &said).await,
    }
    life.check(&desk, &said);
    reaper.has_struck()
}

/// Crashes, then stops the effect. Returns whether it crashed.
async fn stop_at(life: &Life, point: Point) -> bool {
    let said = format!("{life:?} stopped at {point:?}");
    let (mut desk, effect) = (life.desk(Some(point), Fall::Late).await, life.effect());
    let reaper = Arc::clone(&desk.reaper);
    tokio::select! {
        () = live(&desk, &effect, Verb::Perform, &said) => return reaper.has_struck(),
        () = reaper.wait() => {}
    }
    let seen = |desk: &Desk| -> Vec<_> {
        let world = desk.api.world();
        world.machines.values().map(|one| (one.status, one.owner.clone())).collect()
    };
    // A create request has no system id yet.
    let changes = |desk: &Desk| ["", "m00001"].map(|id| desk.api.world().changes(id));
    desk.settings.in_flight = Duration::from_secs(3_600);
    for _ in 0..MAX_TURNS {
        match desk.ask_effect(Verb::Stop, &effect, 1).await.0 {
            Ok(Answer::Done(_)) => return true,
            Ok(Answer::Stopped) => {
                let before = seen(&desk);
                desk.api.world().arrive();
                assert_eq!(seen(&desk), before, "the stopped effect happened: {said}");
                let asked = changes(&desk);
                let _refused = desk.ask_effect(Verb::Perform, &effect, 1).await;
                assert_eq!(changes(&desk), asked, "it began again: {said}");
                return true;
            }
            // A request in transit has arrived by now, or never will.
            Ok(Answer::UnderWay) => {
                desk.api.world().arrive();
                desk.settings.in_flight = Duration::ZERO;
            }
            other => panic!("a stop was answered with {other:?}: {said}"),
        }
    }
    panic!("it did not stop in {MAX_TURNS} turns: {said}");
}

/// All crash points of an undisturbed scenario.
async fn points(life: &Life) -> Vec<Point> {
    let said = format!("{life:?} undisturbed");
    let desk = life.desk(None, Fall::Before).await;
    live(&desk, &life.effect(), Verb::Perform, &said).await;
    life.check(&desk, &said);
    let calls = desk.reaper.calls();
    eprintln!("{life:?}: {calls:?}");
    calls
        .iter()
        .flat_map(|(who, count)| (1..=*count).map(move |call| (*who, call)))
        .flat_map(|(who, call)| [When::Before, When::After].map(|when| Point { who, call, when }))
        .collect()
}

/// What follows a crash.
#[derive(Clone, Copy)]
enum Blow {
    Death,
    Stop,
}

async fn matrix(life: Life, blow: Blow) {
    let points = points(&life).await;
    let count = points.len();
    let struck: Vec<bool> = stream::iter(points)
        .map(|point| {
            let life = life.clone();
            async move {
                match blow {
                    Blow::Death => die_at(&life, point).await,
                    Blow::Stop => stop_at(&life, point).await,
                }
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let hit = struck.iter().filter(|struck| **struck).count();
    assert!(count > 0 && hit == count, "{life:?} never crashed at {} points", count - hit);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stage_survives_every_death() {
    for stage in Stage::ALL.iter().copied().filter(|stage| stage.room() == Room::Maas) {
        matrix(Life::Stage(stage), Blow::Death).await;
    }
    matrix(Life::Find, Blow::Death).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_back_survives_every_death() {
    for stage in Stage::ALL.iter().copied().filter(|stage| stage.undoable()) {
        matrix(Life::Undo(stage), Blow::Death).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_behind_maas_survive_every_death() {
    let power_off = PowerOffPolicy::CONFIGURED;
    for effect in [
        Effect::Repave { image: "ubuntu/jammy".into() },
        Effect::Reboot { mode: RebootMode::Bmc, power_off },
        Effect::Power { to: PowerTo::Off, power_off },
    ] {
        matrix(Life::Machine(effect), Blow::Death).await;
    }
}

/// Effects that release, create or delete: a stop must not be answered while the request is still
/// in transit.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_stopped_does_not_happen_afterwards() {
    let stages = [
        Stage::CreateOrFindInMaas,
        Stage::CommissionNode,
        Stage::DeployViaMaas,
        Stage::RecoverForDatasourceRetry,
        Stage::ReleaseMaasNode,
        Stage::RemoveMaasRecord,
    ];
    let undone = Stage::ALL.iter().copied().filter(|stage| stage.undoable()).map(Life::Undo);
    let repave = Life::Machine(Effect::Repave { image: "ubuntu/jammy".into() });
    for life in stages.into_iter().map(Life::Stage).chain(undone).chain([repave]) {
        matrix(life, Blow::Stop).await;
    }
}
