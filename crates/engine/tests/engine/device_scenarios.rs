//! The scenarios of records with a lifecycle and of operations with parts. A new lifecycle, or a new path through one, is added
//! here.

use crate::agent_scenarios;
use crate::clients::Door;
use crate::node_scenarios::{self, NodeAsk};
use crate::rack_world::{
    Register, SHELF, SWITCH, Stand, StartWhole, Want, Wish, device, group, heard, whole,
};
use crate::racks::{add_firmware, firmware};
use crate::scenario::{Coverage, Fixture, Sampling, Scenario};
use crate::world::World;
use engine::hosts::Reprovision;
use engine::racks::{DescribedRack, MaintenanceStart};
use model::effect::{DeviceWork, Effect, FabricTo, PowerTo};
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::machine::Labels;
use model::plan::{RunStep, RunType};
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::rack::maintenance::{Asked, PowerSequence, Scope, Trigger, Wanted};
use model::rack::{Counts, RackSpec, RackState};
use model::run::Run;
use model::run::act::Action;
use providers::sim::{self, FaultRule};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{Enqueue, StoreError, Tx, TxFuture};

const PAUSE: Duration = Duration::from_secs(1);

/// One thing that a client does. Each waits until what came before has come to rest.
#[derive(Debug, Clone)]
pub enum Ask {
    Register(&'static str),
    Want(Wish),
    Whole(Vec<RunStep>),
    Mend,
    /// On the last whole.
    Act(Action),
    Rack,
    Maintain(Asked),
    DeleteRack,
    /// Have the firmware of the machine seen to.
    Reprovision,
    /// As soon as its power is being switched.
    Meanwhile(Wish),
    Node(NodeAsk),
}

/// A scenario, as it is listed.
pub struct DeviceScenario {
    pub name: &'static str,
    /// What stands there when it begins.
    pub devices: &'static [&'static str],
    pub before: Vec<Ask>,
    pub faults: Vec<FaultRule>,
    pub script: Vec<Ask>,
    /// Commits that must have been crash points, and how often at least.
    pub commits: &'static [(&'static str, usize)],
    /// Steps whose effect must have been a crash point.
    pub steps: &'static [&'static str],
    /// So long that only the first, the second and the last of each kind of point are crash points.
    pub long: bool,
    /// The state of the newest node at the end.
    pub node: Option<&'static str>,
}

impl DeviceScenario {
    fn build(self) -> Scenario {
        let Self { name, devices, before, faults, script, commits, steps, long, node } = self;
        Scenario {
            name: name.into(),
            fixture: Fixture::Devices(DeviceFixture { devices, before, faults, script, node }),
            coverage: Coverage {
                steps: steps.iter().map(ToString::to_string).collect(),
                commits: commits.to_vec(),
                shared: true,
            },
            sampling: match (long, node) {
                (false, _) => Sampling::Every,
                (true, None) => Sampling::FirstTwoAndLast,
                // The stages of nodes are many, and each is covered by one scenario.
                (true, Some(_)) => Sampling::OwnSteps,
            },
        }
    }
}

/// Devices, and what is asked for.
#[derive(Clone)]
pub struct DeviceFixture {
    devices: &'static [&'static str],
    before: Vec<Ask>,
    faults: Vec<FaultRule>,
    pub script: Vec<Ask>,
    pub node: Option<&'static str>,
}

pub fn all() -> Vec<Scenario> {
    let devices = shelves().into_iter().chain(groups()).chain(racks()).chain(hosts());
    let all = devices.chain(node_scenarios::all()).chain(agent_scenarios::all());
    all.map(DeviceScenario::build).collect()
}

/// The words of every effect in these scenarios.
pub fn words() -> Vec<&'static str> {
    let groups = [upgrade(), fabric()].concat();
    let parts = groups.iter().flat_map(|step| match &step.effect {
        Effect::Parts { group } => group.parts.iter().flat_map(|part| part.steps.clone()).collect(),
        _ => Vec::new(),
    });
    let of_shelves = ["parts", "read", "configure", "power"];
    parts.map(|step| step.effect.word()).chain(of_shelves).collect()
}

pub fn fault(effect: &str, action: sim::Action, times: u32) -> FaultRule {
    FaultRule { effect: effect.into(), times, ..FaultRule::new(action) }
}

/// The ways of a power shelf.
fn shelves() -> Vec<DeviceScenario> {
    let off = || Ask::Want(Wish::Power(PowerTo::Off));
    let on = || Ask::Want(Wish::Power(PowerTo::On));
    let power = |action, times| vec![fault("power", action, times)];
    let shelf = |name, before, faults, script, commits, steps| DeviceScenario {
        name,
        devices: &[],
        before,
        faults,
        script,
        commits,
        steps,
        long: false,
        node: None,
    };
    let ready = || vec![Ask::Register(SHELF)];
    const BORN: &[(&str, usize)] = &[("register", 1), ("advance", 3), ("commit", 4)];
    const MOVED: &[(&str, usize)] = &[("want", 1), ("advance", 2), ("commit", 2)];
    const MENDED: &[(&str, usize)] = &[("want", 2), ("advance", 4), ("commit", 4)];
    vec![
        shelf("a shelf is registered", vec![], vec![], ready(), BORN, &["read", "configure"]),
        shelf(
            "a switch is registered",
            vec![],
            vec![],
            vec![Ask::Register(SWITCH)],
            &[("register", 1), ("advance", 4), ("commit", 6)],
            &["read", "configure", "validate"],
        ),
        shelf("a shelf goes off and on", ready(), vec![], vec![off(), on()], MOVED, &["power-off"]),
        shelf(
            "a shelf's answer is lost",
            ready(),
            power(sim::Action::Drop, 1),
            vec![off()],
            MOVED,
            &["power-off"],
        ),
        shelf(
            "a shelf fails, is mended and asked again",
            ready(),
            power(sim::Action::Fail, 0),
            vec![off(), Ask::Mend, off()],
            MENDED,
            &["power-off"],
        ),
        shelf(
            "a shelf cannot be read, is mended and tried again",
            vec![],
            vec![fault("read", sim::Action::Fail, 0)],
            vec![Ask::Register(SHELF), Ask::Mend, Ask::Want(Wish::Retry)],
            BORN,
            &["read", "configure"],
        ),
        shelf(
            "a shelf is deleted",
            ready(),
            vec![],
            vec![Ask::Want(Wish::Delete)],
            &[("advance", 1)],
            &[],
        ),
        shelf(
            "a shelf is deleted as it goes off",
            ready(),
            vec![],
            vec![off(), Ask::Meanwhile(Wish::Delete)],
            MOVED,
            &["power-off"],
        ),
    ]
}

const FLASHED: [&str; 3] = ["m-1", "sw-1", "ps-2"];
/// Firmware that nothing has when a scenario begins.
const NEWER: &str = "fw-2";

/// Firmware on a device of each kind, two at a time, and then a check.
fn upgrade() -> Vec<RunStep> {
    let work = DeviceWork::Firmware {
        component: "BIOS".into(),
        version: "2.0".into(),
        url: "https://images/bios".into(),
        sha256: "0".repeat(64),
    };
    let wanted = BTreeMap::from([("BIOS".to_string(), "2.0".to_string())]);
    let check = DeviceWork::Check { firmware: wanted, power: None };
    vec![
        group("upgrade", &Effect::Device { work }, &FLASHED, 2),
        group("look", &Effect::Device { work: check }, &FLASHED[..2], 2),
    ]
}

/// What power does to two devices at once, after they have left their fabric.
fn fabric() -> Vec<RunStep> {
    let leave = Effect::Device { work: DeviceWork::Fabric { to: FabricTo::Off } };
    let off =
        Effect::Power { to: PowerTo::Off, power_off: model::effect::PowerOffPolicy::CONFIGURED };
    vec![group("leave", &leave, &["sw-1"], 1), group("dark", &off, &["m-1", "ps-2"], 2)]
}

/// The ways of an operation with parts.
fn groups() -> Vec<DeviceScenario> {
    let of = |name, faults, script, commits, steps| DeviceScenario {
        name,
        devices: &FLASHED,
        before: vec![],
        faults,
        script,
        commits,
        steps,
        long: false,
        node: None,
    };
    let firmware = |machine: &str, action, times| {
        vec![FaultRule { machine: machine.into(), ..fault("firmware", action, times) }]
    };
    // Two commits for each of five parts, three for the whole.
    const ALL: &[(&str, usize)] = &[("start_whole", 1), ("begin_parts", 3), ("commit", 13)];
    const STEPS: &[&str] = &["firmware", "check"];
    let upgraded = || vec![Ask::Whole(upgrade())];
    vec![
        of("a group is upgraded", vec![], upgraded(), ALL, STEPS),
        of(
            "a group leaves its fabric and goes dark",
            vec![],
            vec![Ask::Whole(fabric())],
            &[("start_whole", 1), ("begin_parts", 2), ("commit", 9)],
            &["fabric", "power"],
        ),
        of("a part fails once", firmware("m-1", sim::Action::Fail, 1), upgraded(), ALL, STEPS),
        of(
            "a part's answer is lost",
            firmware("sw-1", sim::Action::Drop, 1),
            upgraded(),
            ALL,
            STEPS,
        ),
        of(
            "a part fails, is mended, and the whole tried again",
            firmware("m-1", sim::Action::Fail, 0),
            vec![Ask::Whole(upgrade()), Ask::Mend, Ask::Act(Action::RetryStep)],
            &[("start_whole", 1), ("begin_parts", 3), ("act_on_run", 1), ("commit", 13)],
            STEPS,
        ),
    ]
}

/// The ways of a rack: into service, through a maintenance, and out of it.
fn racks() -> Vec<DeviceScenario> {
    let of = |name, before, faults, script, commits, steps| DeviceScenario {
        name,
        devices: &FLASHED,
        before,
        faults,
        script,
        commits,
        steps,
        long: true,
        node: None,
    };
    const FOLLOWED: &[(&str, usize)] = &[("begin_parts", 2), ("advance", 3), ("commit", 3)];
    const INTAKE: &[&str] =
        &["firmware-bmc", "fabric-off", "fabric-manager", "fabric-configured", "power-on", "check"];
    vec![
        of("a rack comes into service", vec![], vec![], vec![Ask::Rack], FOLLOWED, INTAKE),
        of(
            "a rack is maintained",
            vec![Ask::Rack],
            vec![],
            vec![reset()],
            FOLLOWED,
            &["power-off", "power-on", "check"],
        ),
        of(
            "a rack's firmware is upgraded",
            vec![Ask::Rack],
            vec![],
            vec![Ask::Maintain(Asked::FirmwareUpgrade(Some(FirmwareId::trusted(NEWER))))],
            FOLLOWED,
            &["firmware-bmc", "check"],
        ),
        of(
            "a maintenance fails, is mended and asked again",
            vec![Ask::Rack],
            vec![FaultRule { machine: "sw-1".into(), ..fault("power", sim::Action::Fail, 0) }],
            vec![reset(), Ask::Mend, reset()],
            FOLLOWED,
            &["power-off", "power-on", "check"],
        ),
        of(
            "a rack is deleted",
            vec![Ask::Rack],
            vec![],
            vec![Ask::DeleteRack],
            &[("delete_rack", 1), ("advance", 1)],
            &[],
        ),
    ]
}

/// The ways of a host, whose machine stands in no rack.
fn hosts() -> Vec<DeviceScenario> {
    let of = |name, faults, commits| DeviceScenario {
        name,
        devices: &FLASHED[..1],
        before: vec![],
        faults,
        script: vec![Ask::Reprovision],
        commits,
        steps: &["firmware-bmc"],
        long: false,
        node: None,
    };
    let fails = |times| vec![fault("firmware", sim::Action::Fail, times)];
    vec![
        of(
            "a host is upgraded",
            vec![],
            &[("request_reprovision", 1), ("advance", 2), ("commit", 2)],
        ),
        of(
            "a host's upgrade fails and is tried again later",
            fails(1),
            &[("request_reprovision", 1), ("advance", 4), ("commit", 4)],
        ),
    ]
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

/// Does one thing after the other, each under a name of its own.
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
                written(&door, "want", want, |want, tx| Box::pin(want.run(tx))).await;
            }
            Ask::Whole(steps) => {
                let id = RunId::new(world.now(), 7 + index as u64);
                let run = whole(id, &name, steps, world.now());
                let start = || StartWhole { run: run.clone(), enqueue: Enqueue::Now };
                let started =
                    written(&door, "start_whole", start, |start, tx| Box::pin(start.run(tx)));
                last = Some(started.await);
            }
            Ask::Rack => {
                let answer = door.ask(|engine| async move {
                    engine.create_rack(described(), "client".into()).await
                });
                answer.await.expect("created");
            }
            Ask::Reprovision => {
                let answer = door.ask(|engine| {
                    let asked = reprovision(&name);
                    async move { engine.reprovision(asked).await }
                });
                answer.await.expect("accepted");
            }
            Ask::Maintain(asked) => {
                let answer = door.ask(|engine| {
                    let start = maintenance(asked.clone(), &name);
                    async move { engine.start_rack_maintenance(start).await }
                });
                answer.await.expect("accepted");
            }
            Ask::DeleteRack => {
                let answer = door.ask(|engine| async move {
                    engine.delete_rack(rack_id(), true, "client".into()).await
                });
                // Asked again, it may be gone already.
                let answer = answer.await.map(drop);
                assert!(matches!(answer, Ok(()) | Err(StoreError::Refused(_))), "{answer:?}");
            }
            Ask::Node(ask) => node_scenarios::ask(&door, &world, ask, &name).await,
            Ask::Mend => {
                world.sim.clear_faults(None).expect("cleared");
            }
            Ask::Act(action) => {
                // Somebody may have stopped it: then there is nothing to try again.
                let id = last.clone().expect("a whole");
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

fn reset() -> Ask {
    Ask::Maintain(Asked::PowerSequence(PowerSequence::Reset))
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

/// Writes until it is written, whoever answers.
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
    answer.await.unwrap_or_else(|error| panic!("a client was told {error}"))
}

/// Waits until a shelf has been told to switch its power.
async fn power_is_switched(world: &World) {
    let is_power = |run: &Run| run.spec.run_type == RunType::Power;
    while !world.everything().await.runs.iter().any(|kept| is_power(&kept.run)) {
        tokio::time::sleep(PAUSE / 100).await;
    }
}

/// Waits until nothing is under way and every shelf is where it stays. Where nothing was committed there is nothing new to see.
async fn rest(world: &World) {
    let mut committed = world.store.bus().listen();
    // Who was just told something is given the time to hear it.
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

/// Who works on something now, for those who want to stop it: a whole before its parts.
pub async fn at_work(world: &World) -> Option<Run> {
    let active = active_runs(world).await;
    let whole = active.iter().find(|run| run.spec.part_of.is_none()).cloned();
    whole.or_else(|| active.into_iter().next())
}

async fn active_runs(world: &World) -> Vec<Run> {
    let active = world.store.read((), |(), tx| Box::pin(tx.active_runs(100)));
    active.await.expect("the database answers")
}
