//! The fixture of device scenarios: the initial devices, and a client that follows a script.

use crate::clients::Door;
use crate::node_scenarios::{self, NodeAsk};
use crate::rack_world::{Register, Stand, StartWhole, Want, Wish, device, heard, whole};
use crate::racks::{add_firmware, firmware};
use crate::world::World;
use engine::host::Reprovision;
use engine::rack::{DescribedRack, MaintenanceStart};
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::machine::Labels;
use model::plan::{RunStep, RunType};
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::rack::maintenance::{Asked, Scope, Trigger, Wanted};
use model::rack::{Counts, RackSpec, RackState};
use model::run::Run;
use model::run::act::Action;
use providers::sim::FaultRule;
use std::time::Duration;
use store::{Enqueue, StoreError, Tx, TxFuture};

pub const FLASHED: [&str; 3] = ["m-1", "sw-1", "ps-2"];
/// Firmware that no device has when a scenario begins.
pub const NEWER: &str = "fw-2";
const PAUSE: Duration = Duration::from_secs(1);

/// One action of a client. Each waits until the previous ones are finished.
#[derive(Debug, Clone)]
pub enum Ask {
    Register(&'static str),
    Want(Wish),
    Whole(Vec<RunStep>),
    Mend,
    /// On the last parent run.
    Act(Action),
    Rack,
    Maintain(Asked),
    DeleteRack,
    /// Upgrade the firmware of the machine.
    Reprovision,
    /// While its power is being switched.
    Meanwhile(Wish),
    Node(NodeAsk),
}

/// Devices, and the requests to them.
#[derive(Clone)]
pub struct DeviceFixture {
    pub devices: &'static [&'static str],
    pub before: Vec<Ask>,
    pub faults: Vec<FaultRule>,
    pub script: Vec<Ask>,
    pub node: Option<&'static str>,
}

impl DeviceFixture {
    pub async fn prepare(&self, world: &World, door: &Door) {
        let asks = || self.before.iter().chain(&self.script);
        let in_rack = asks().any(|ask| matches!(ask, Ask::Rack));
        if in_rack || asks().any(|ask| matches!(ask, Ask::Reprovision)) {
            for record in [firmware("fw-1", "2.0", true, true), firmware(NEWER, "3.0", false, true)]
            {
                add_firmware(&world.store, record).await;
            }
        }
        for id in self.devices {
            let rack = in_rack.then(rack_id);
            Stand { target: device(id), rack, now: world.now() }.write(&world.store).await;
        }
        if self.node.is_some() {
            world.nodes_are_watched();
            node_scenarios::make_site(door, node_scenarios::SITE).await;
        }
        follow(door.clone(), world.clone(), self.before.clone(), "before").await;
        for rule in &self.faults {
            world.sim.add_fault(rule.clone()).expect("a rule");
        }
    }
}

/// Executes the actions in order, each with its own request id.
pub async fn follow(door: Door, world: World, script: Vec<Ask>, name: &str) {
    let mut last: Option<RunId> = None;
    for (index, ask) in script.into_iter().enumerate() {
        match &ask {
            Ask::Meanwhile(_) => power_is_switched(&world).await,
            Ask::Register(_)
            | Ask::Want(_)
            | Ask::Whole(_)
            | Ask::Mend
            | Ask::Act(_)
            | Ask::Rack
            | Ask::Maintain(_)
            | Ask::DeleteRack
            | Ask::Node(_)
            | Ask::Reprovision => rest(&world).await,
        }
        let name = format!("{name} {index}");
        match ask {
            Ask::Register(id) => {
                let register = || Register { id, now: world.now() };
                written(&door, "register", register, |one, tx| Box::pin(one.run(tx))).await;
            }
            Ask::Want(wish) | Ask::Meanwhile(wish) => {
                let want = || Want { wish, name: name.clone(), now: world.now() };
                written(&door, "request_shelf", want, |want, tx| Box::pin(want.run(tx))).await;
            }
            Ask::Whole(steps) => {
                let id = RunId::new(world.now(), 7 + index as u64);
                let run = whole(id, &name, steps, world.now());
                let start = || StartWhole { run: run.clone(), enqueue: Enqueue::Now };
                let started =
                    written(&door, "start_parent", start, |start, tx| Box::pin(start.run(tx)));
                last = Some(started.await);
            }
            Ask::Rack => {
                let answer = door.ask(|engine| async move {
                    engine.racks().create(described(), "client".into()).await
                });
                answer.await.expect("created");
            }
            Ask::Reprovision => {
                let answer = door.ask(|engine| {
                    let asked = reprovision(&name);
                    async move { engine.hosts().reprovision(asked).await }
                });
                answer.await.expect("accepted");
            }
            Ask::Maintain(asked) => {
                let answer = door.ask(|engine| {
                    let start = maintenance(asked.clone(), &name);
                    async move { engine.racks().maintain(start).await }
                });
                answer.await.expect("accepted");
            }
            Ask::DeleteRack => {
                let answer = door.ask(|engine| async move {
                    engine.racks().delete(rack_id(), true, "client".into()).await
                });
                // A retried request may find the rack deleted.
                let answer = answer.await.map(drop);
                assert!(matches!(answer, Ok(()) | Err(StoreError::Refused(_))), "{answer:?}");
            }
            Ask::Node(ask) => node_scenarios::ask(&door, &world, ask, &name).await,
            Ask::Mend => {
                world.sim.clear_faults(None).expect("cleared");
            }
            Ask::Act(action) => {
                // The run may have been canceled; then there is nothing to retry.
                let id = last.clone().expect("a parent run");
                let run = door.ended(&id).await;
                if run.progress.workflow.failed() {
                    door.tell(&id, action).await;
                }
            }
        }
    }
    rest(&world).await;
}

fn rack_id() -> RackId {
    RackId::trusted("rack-1")
}

fn described() -> DescribedRack {
    let expected = Counts { machines: 1, switches: 1, power_shelves: 1 };
    let spec = RackSpec { hardware_type: "gb200".into(), expected };
    DescribedRack { id: rack_id(), labels: Labels::new(), spec }
}

fn reprovision(name: &str) -> Reprovision {
    Reprovision {
        machine: MachineId::trusted(FLASHED[0]),
        firmware: Some(FirmwareId::trusted(NEWER)),
        request_id: name.into(),
        by: "client".into(),
    }
}

fn maintenance(asked: Asked, name: &str) -> MaintenanceStart {
    MaintenanceStart {
        rack_id: rack_id(),
        wanted: Wanted { scope: Scope::default(), activities: vec![asked] },
        trigger: Trigger::OnDemand,
        request_id: name.into(),
        by: "client".into(),
        reference: String::new(),
        force: None,
        dry_run: false,
    }
}

/// Retries until it is written, through whichever process is current.
async fn written<I: Send + Sync + 'static, T: Send + 'static>(
    door: &Door,
    name: &'static str,
    input: impl Fn() -> I,
    body: for<'a> fn(&'a I, &'a mut Tx) -> TxFuture<'a, T>,
) -> T {
    let answer = door.ask(|engine| {
        let input = input();
        async move { heard(engine.store().write(name, input, body).await) }
    });
    answer.await.unwrap_or_else(|error| panic!("the request failed: {error}"))
}

/// Waits until a shelf has started a power run.
async fn power_is_switched(world: &World) {
    let is_power = |run: &Run| run.spec.run_type == RunType::Power;
    while !world.everything().await.runs.iter().any(|kept| is_power(&kept.run)) {
        tokio::time::sleep(PAUSE / 100).await;
    }
}

/// Waits until no run is active and every record is idle. Reads only after a commit.
async fn rest(world: &World) {
    let mut committed = world.store.bus().listen();
    // Gives the woken workers time to start.
    tokio::time::sleep(PAUSE).await;
    loop {
        let all = world.records().await;
        let resting = |shelf: &PowerShelf| {
            let wanted = shelf.maintenance_requested.is_some() || shelf.head.deleted;
            match shelf.state {
                PowerShelfState::Ready => !wanted && shelf.head.active_run.is_none(),
                PowerShelfState::Error { .. } => !wanted && !shelf.retry_requested,
                PowerShelfState::Initializing
                | PowerShelfState::FetchingData
                | PowerShelfState::Configuring
                | PowerShelfState::Maintenance { .. }
                | PowerShelfState::Deleting => false,
            }
        };
        let ended = active_runs(world).await.is_empty();
        let racks = all.racks.iter().all(|rack| {
            let over = matches!(rack.state, RackState::Ready | RackState::Error { .. });
            let asked = rack.topology_changed || !rack.maintenance_requested.is_empty();
            over && rack.active.is_empty() && !rack.head.deleted && !asked
        });
        let nodes = node_scenarios::at_rest(&all.nodes);
        if ended && racks && nodes && all.shelves.iter().all(resting) && all.hosts_rest() {
            return;
        }
        while committed.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
        committed = committed.resubscribe();
    }
}

/// The active run that a cancel is aimed at: a parent before its children.
pub async fn at_work(world: &World) -> Option<Run> {
    let active = active_runs(world).await;
    let whole = active.iter().find(|run| run.spec.part_of.is_none()).cloned();
    whole.or_else(|| active.into_iter().next())
}

async fn active_runs(world: &World) -> Vec<Run> {
    let active = world.store.read((), |(), tx| Box::pin(tx.active_runs(100)));
    active.await.expect("the in-memory database answers")
}
