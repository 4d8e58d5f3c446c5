//! The crash matrix of the MAAS provider: every stage is lived once undisturbed, counting what is asked of the keeper and of MAAS; then
//! once for each of these calls, struck before it and after it. A process that remembers nothing goes on as the engine would have it. The
//! end must be the same, and nothing that does harm twice may have happened twice.

use crate::maas_api::{End as Ends, Fall, Fate};
use crate::maas_desk::{Desk, NODE, SITE, effect};
use crate::reaper::{Point, Reaper, When, Who};
use futures_util::stream::{self, StreamExt};
use model::effect::{Answer, Effect, Manner, PowerTo, RebootMode, Verb};
use model::fault::Happened;
use model::node::{NodeState, Room, Stage};
use providers::maas::Status;
use std::sync::Arc;

/// How many turns a life may take after it was struck.
const MAX_TURNS: usize = 12;
/// How many lives are lived at once.
const AT_ONCE: usize = 8;

#[derive(Debug, Clone)]
enum Life {
    Stage(Stage),
    Undo(Stage),
    /// Of a machine that is no node.
    Machine(Effect),
}

impl Life {
    fn effect(&self) -> Effect {
        match self {
            Self::Stage(stage) => effect(*stage, false),
            Self::Undo(stage) => effect(*stage, true),
            Self::Machine(effect) => effect.clone(),
        }
    }

    /// What MAAS has before it.
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
            Self::Undo(Stage::DeployViaMaas) | Self::Machine(_) => Some(Status::Deployed),
            Self::Undo(_) => Some(Status::Ready),
        }
    }

    /// What must have been asked how often, whatever happened on the way.
    fn acted(&self) -> &'static [(&'static str, usize)] {
        match self {
            Self::Stage(Stage::DeployViaMaas) => &[("deploy", 1), ("allocate", 1), ("release", 0)],
            Self::Stage(Stage::RecoverForDatasourceRetry) => {
                &[("deploy", 1), ("allocate", 1), ("release", 1)]
            }
            Self::Stage(Stage::CommissionNode) => &[("commission", 1)],
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

    /// As what MAAS has the machine afterwards.
    fn ends(&self) -> Option<Status> {
        match self {
            Self::Stage(stage) => match stage {
                Stage::CreateOrFindInMaas => Some(Status::New),
                Stage::WaitForDeployed | Stage::RecoverForDatasourceRetry => Some(Status::Deployed),
                Stage::ReleaseMaasNode | Stage::WaitForReady => Some(Status::Ready),
                Stage::RemoveMaasRecord => None,
                Stage::ClassifyDeployFailure => Some(Status::FailedDeployment),
                // By how often it was looked at.
                Stage::CommissionNode | Stage::DeployViaMaas => self.status(),
                _ => self.status(),
            },
            Self::Undo(Stage::CreateOrFindInMaas) => None,
            Self::Undo(_) => Some(Status::Ready),
            Self::Machine(_) => Some(Status::Deployed),
        }
    }

    async fn desk(&self, at: Option<Point>) -> Desk {
        let reaper = Reaper::new(at);
        let mut desk = Desk::with(Arc::clone(&reaper)).await;
        let Some(status) = self.status() else { return struck_by(desk, reaper) };
        let id = desk.add(status);
        desk.put_node(NODE, &id, NodeState::Retired);
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
        drop(world);
        struck_by(desk, reaper)
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
            Self::Stage(_) | Self::Undo(_) | Self::Machine(_) => {
                assert_eq!(ends, self.ends(), "{said}")
            }
        }
        assert!(world.machines.len() <= 1, "it was made twice: {said}");
        // What is deleted was the first that there was.
        let id = id.unwrap_or_else(|| "m00001".into());
        for (name, times) in self.acted() {
            assert_eq!(world.count(&id, name), *times, "{name}: {said}");
        }
    }
}

fn struck_by(desk: Desk, reaper: Arc<Reaper>) -> Desk {
    desk.api.world().falls = Some(Arc::new(move || {
        let fall = match reaper.arrive(Who::Api)? {
            When::Before => Fall::Before,
            When::After => Fall::After,
        };
        let reaper = Arc::clone(&reaper);
        Some((fall, Box::new(move || reaper.strike())))
    }));
    desk
}

/// Does what the engine would, from this verb on, until it is done.
async fn live(desk: &Desk, effect: &Effect, mut verb: Verb, said: &str) {
    for _ in 0..MAX_TURNS {
        verb = match (verb, desk.ask_effect(verb, effect, 1).await.0) {
            (_, Ok(Answer::Done(_))) => return,
            (Verb::Inquire, Ok(Answer::UnderWay)) => Verb::Follow,
            (Verb::Inquire, Ok(Answer::NeverStarted)) => Verb::Perform,
            (_, Err(fault)) if fault.code.happened() == Happened::Maybe => Verb::Inquire,
            (verb, other) => panic!("{verb:?} was answered with {other:?}: {said}"),
        };
    }
    panic!("it did not end in {MAX_TURNS} turns: {said}");
}

async fn die_at(life: &Life, point: Point) -> bool {
    let said = format!("{life:?} struck at {point:?}");
    let (desk, effect) = (life.desk(Some(point)).await, life.effect());
    let reaper = Arc::clone(&desk.reaper);
    tokio::select! {
        () = live(&desk, &effect, Verb::Perform, &said) => {}
        () = reaper.wait() => live(&desk, &effect, Verb::Inquire, &said).await,
    }
    life.check(&desk, &said);
    reaper.has_struck()
}

async fn matrix(life: Life) {
    let said = format!("{life:?} undisturbed");
    let desk = life.desk(None).await;
    live(&desk, &life.effect(), Verb::Perform, &said).await;
    life.check(&desk, &said);
    let calls = desk.reaper.calls();
    drop(desk);
    let points: Vec<Point> = calls
        .iter()
        .flat_map(|(who, count)| (1..=*count).map(move |call| (*who, call)))
        .flat_map(|(who, call)| [When::Before, When::After].map(|when| Point { who, call, when }))
        .collect();
    let count = points.len();
    let struck: Vec<bool> = stream::iter(points)
        .map(|point| {
            let life = life.clone();
            async move { die_at(&life, point).await }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let hit = struck.iter().filter(|struck| **struck).count();
    eprintln!("{life:?}: {calls:?}, {hit} of {count} points");
    assert!(count > 0 && hit == count, "{life:?} was never struck at {} points", count - hit);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stage_survives_every_death() {
    for stage in Stage::ALL.iter().copied().filter(|stage| stage.room() == Room::Maas) {
        matrix(Life::Stage(stage)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_back_survives_every_death() {
    for stage in Stage::ALL.iter().copied().filter(|stage| stage.undoable()) {
        matrix(Life::Undo(stage)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_behind_maas_survive_every_death() {
    let manner = Manner::CONFIGURED;
    for effect in [
        Effect::Repave { image: "ubuntu/jammy".into() },
        Effect::Reboot { mode: RebootMode::Bmc, manner },
        Effect::Power { to: PowerTo::Off, manner },
    ] {
        matrix(Life::Machine(effect)).await;
    }
}
