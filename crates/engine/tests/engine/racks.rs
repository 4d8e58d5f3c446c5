//! Racks in simulated time: intake, concurrent operations, failures and cancels.

use crate::world::{Process, World, simulate};
use engine::rack::{DescribedRack, MaintenanceStart, MaintenanceStarted, RackView};
use engine::{Described, DescribedDevice, Engine, PlacedSpec, Settings};
use model::effect::Facts;
use model::firmware::{Component, Firmware};
use model::id::{FirmwareId, MachineId, PowerShelfId, RackId, RunId, SwitchId};
use model::lifecycle::{DeviceSpec, Head, Lifecycle, Next, SubjectKind, Why};
use model::machine::{Labels, MachineSpec};
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::rack::maintenance::{Asked, PowerSequence, Scope, Trigger, Wanted};
use model::rack::{Counts, During, Rack, RackSpec, RackState};
use model::refusal::Refusal;
use model::run::act::{Action, RestartMode, Who};
use model::run::{Run, RunPhase};
use model::switch::{Switch, SwitchState};
use model::target::TargetKind;
use model::time::Timestamp;
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::{Cause, NewEvent, Result, Store, StoreError, Tx};

const RACK: &str = "rack-1";
const PATIENCE: u32 = 20_000;

pub struct Scene {
    pub world: World,
    process: Process,
}

impl Scene {
    /// A rack of two machines, two switches and a shelf, in service.
    pub async fn ready() -> Self {
        let scene =
            Self::with_expected(Counts { machines: 2, switches: 2, power_shelves: 1 }).await;
        scene.fill().await;
        scene.until("Ready").await;
        scene
    }

    async fn with_expected(expected: Counts) -> Self {
        Self::under(Settings { replica: "a".into(), ..Settings::default() }, expected).await
    }

    pub async fn under(settings: Settings, expected: Counts) -> Self {
        let world = World::new(7).await;
        let process = world.boot_with(settings).await;
        let firmware = firmware("fw-1", "2.0", true, true);
        add_firmware(&world.store, firmware).await;
        let scene = Self { world, process };
        scene.create(expected).await;
        scene
    }

    pub fn engine(&self) -> &Engine {
        &self.process.engine
    }

    async fn create(&self, expected: Counts) {
        let spec = RackSpec { hardware_type: "gb200".into(), expected };
        let described = DescribedRack { id: RackId::trusted(RACK), labels: Labels::new(), spec };
        self.engine().racks().create(described, "test".into()).await.expect("created");
    }

    pub async fn fill(&self) {
        self.add_device(TargetKind::PowerShelf, "ps-1", 1).await;
        self.add_device(TargetKind::Switch, "sw-2", 3).await;
        self.add_device(TargetKind::Switch, "sw-1", 2).await;
        self.add_machine("m-1", Some(10)).await.expect("registered");
        self.add_machine("m-2", Some(11)).await.expect("registered");
    }

    async fn add_machine(&self, id: &str, slot: Option<u32>) -> Result<()> {
        self.place(id, Some(RACK), slot).await
    }

    pub async fn place(&self, id: &str, rack: Option<&str>, slot: Option<u32>) -> Result<()> {
        let rack = rack.map(RackId::trusted);
        let spec = MachineSpec { rack, slot, ..MachineSpec::default() };
        let id = Some(MachineId::trusted(id));
        let described = Described { id, spec: Some(spec), labels: Labels::new() };
        self.engine().machines().register(described, "test".into()).await.map(|_| ())
    }

    /// Inserts a device that is already in service.
    async fn add_device(&self, kind: TargetKind, id: &str, slot: u32) {
        let (id, now) = (id.into(), self.world.now());
        let add = AddDevice { kind, id, slot, now };
        let added = self.world.store.write("add_device", add, |add, tx| Box::pin(add.run(tx)));
        added.await.expect("added");
    }

    pub async fn view(&self) -> RackView {
        self.engine().racks().get(&RackId::trusted(RACK)).await.expect("a rack")
    }

    pub async fn until(&self, word: &str) -> Rack {
        for _ in 0..PATIENCE {
            let view = self.view().await;
            if view.rack.word() == word {
                return view.rack;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let view = self.view().await;
        let path = self.path().await;
        panic!("{RACK} is never {word}, but {:?}: {}; {path:?}", view.rack.state, view.waits_for);
    }

    pub async fn start(&self, wanted: Wanted) -> Result<MaintenanceStarted> {
        self.engine().racks().maintain(asked(wanted)).await
    }

    pub async fn started(&self, wanted: Wanted) -> RunId {
        self.start(wanted).await.expect("accepted").run.expect("an operation").spec.id
    }

    pub async fn refused(&self, wanted: Wanted) -> Refusal {
        match self.start(wanted).await {
            Err(StoreError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    pub async fn ended(&self, id: &RunId) -> Run {
        for _ in 0..PATIENCE {
            let run = self.engine().runs().get(id).await.expect("a run");
            if run.ended() {
                return run;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{id} never ends")
    }

    /// The states in the history of the rack.
    async fn path(&self) -> Vec<String> {
        let events = self.engine().history(RACK, 0, 10_000).await.expect("a history");
        let mut words: Vec<String> = events.into_iter().map(|event| event.word).collect();
        words.dedup();
        words
    }

    pub fn fail(&self, machine: &str, effect: &str) {
        let rule = FaultRule {
            machine: machine.into(),
            effect: effect.into(),
            message: "it is broken".into(),
            ..FaultRule::new(sim::Action::Fail)
        };
        self.world.sim.add_fault(rule).expect("a rule");
    }

    /// No device stays held at the end. A released switch first checks itself.
    pub async fn nobody_is_held(&self) {
        for _ in 0..PATIENCE {
            let devices = self.view().await.devices;
            if devices.iter().all(|device| device.active_run.is_none()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("a device is still held: {:?}", self.view().await.devices);
    }
}

pub fn asked(wanted: Wanted) -> MaintenanceStart {
    MaintenanceStart {
        rack_id: RackId::trusted(RACK),
        wanted,
        trigger: Trigger::OnDemand,
        request_id: String::new(),
        by: "ada".into(),
        reference: "T-1".into(),
        force: None,
        dry_run: false,
    }
}

pub fn machines(ids: &[&str]) -> Scope {
    Scope { machines: ids.iter().map(|id| MachineId::trusted(*id)).collect(), ..Scope::default() }
}

pub fn power(scope: Scope, sequence: PowerSequence) -> Wanted {
    Wanted { scope, activities: vec![Asked::PowerSequence(sequence)] }
}

pub fn who() -> Who {
    Who { by: "ada".into(), reason: "a test".into() }
}

pub fn firmware(id: &str, version: &str, is_default: bool, available: bool) -> Firmware {
    let component = Component {
        name: "BMC".into(),
        version: version.into(),
        url: "http://files/bmc.bin".into(),
        sha256: "0".repeat(64),
    };
    let kinds = [TargetKind::Machine, TargetKind::Switch, TargetKind::PowerShelf];
    Firmware {
        id: FirmwareId::trusted(id),
        hardware_type: "gb200".into(),
        description: String::new(),
        components: kinds.into_iter().map(|kind| (kind, vec![component.clone()])).collect(),
        is_default,
        available,
        created_at: Timestamp::default(),
    }
}

fn event(at: Timestamp) -> NewEvent {
    let (actor, message) = ("test".into(), "set up".into());
    NewEvent { cause: Cause::Admin, actor, message, decided_by: "a test".into(), at }
}

pub async fn add_firmware(store: &Store, firmware: Firmware) {
    let added = store.write("add_firmware", firmware, |firmware, tx| {
        Box::pin(async move { tx.insert_firmware(firmware, &event(Timestamp::default())).await })
    });
    added.await.expect("added");
}

struct AddDevice {
    kind: TargetKind,
    id: String,
    slot: u32,
    now: Timestamp,
}

impl AddDevice {
    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let mut head = Head::new(self.id.as_str(), Labels::new(), self.now);
        head.rack = Some(RackId::trusted(RACK));
        head.slot = Some(self.slot);
        let spec = DeviceSpec { provider: "sim".into(), ..DeviceSpec::default() };
        match self.kind {
            TargetKind::Switch => {
                let state = SwitchState::Ready;
                let mut switch = Switch { state, ..Switch::new(head, spec) };
                tx.insert_record(&mut switch, &event(self.now)).await?;
            }
            TargetKind::PowerShelf => {
                let state = PowerShelfState::Ready;
                let mut shelf = PowerShelf { state, ..PowerShelf::new(head, spec) };
                shelf.facts = Facts::default();
                tx.insert_record(&mut shelf, &event(self.now)).await?;
            }
            TargetKind::Machine | TargetKind::Rack => panic!("not added here"),
        }
        let mut rack = tx.record_locked::<Rack>(RACK).await?.expect("a rack");
        rack.topology_changed = true;
        tx.update_and_enqueue(&mut rack, &event(self.now))
    }
}

#[test]
fn a_rack_comes_into_service_when_all_its_devices_are_there() {
    simulate(async {
        let scene =
            Scene::with_expected(Counts { machines: 2, switches: 2, power_shelves: 1 }).await;
        scene.until("Discovering").await;
        let waits = scene.view().await.waits_for;
        assert!(waits.contains("0 of 2 machines stand in it"), "{waits}");
        scene.fill().await;
        scene.until("Ready").await;
        let path = ["Created", "Discovering", "Maintenance", "Validating", "Ready"];
        assert_eq!(scene.path().await, path);
        scene.nobody_is_held().await;
        let all =
            scene.engine().racks().operations(&RackId::trusted(RACK)).await.expect("a status");
        let [ingestion] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(ingestion.run.spec.initiator, "engine");
        let legs: Vec<&str> = ingestion.legs.iter().map(|leg| leg.name.as_str()).collect();
        let expected = [
            "firmware-machines",
            "firmware-switches",
            "firmware-power-shelves",
            "fabric-off",
            "fabric-manager",
            "fabric-configured",
            "power-on-shelves",
            "power-on-switches",
            "power-on-machines",
            "validate",
        ];
        assert_eq!(legs, expected);
        let manager = &ingestion.legs[4].parts;
        assert_eq!(manager.len(), 1);
        assert_eq!(manager[0].target.as_str(), "sw-1", "the lowest slot is the primary");
    });
}

#[test]
fn a_rack_that_lacks_devices_says_so_and_goes_on_when_they_come() {
    simulate(async {
        let scene =
            Scene::with_expected(Counts { machines: 2, switches: 0, power_shelves: 0 }).await;
        scene.add_machine("m-1", None).await.expect("registered");
        tokio::time::sleep(Duration::from_secs(24 * 3_600 - 60)).await;
        scene.until("Discovering").await;
        let rack = scene.until("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(cause.during, During::Discovery);
        assert!(cause.trouble.said.contains("1 of 2 machines"), "{}", cause.trouble.said);
        scene.add_machine("m-2", None).await.expect("registered");
        scene.until("Ready").await;
    });
}

#[test]
fn a_full_maintenance_goes_through_every_stage() {
    simulate(async {
        let scene = Scene::ready().await;
        add_firmware(&scene.world.store, firmware("fw-2", "3.0", false, true)).await;
        let activities = vec![
            Asked::FirmwareUpgrade(Some(FirmwareId::trusted("fw-2"))),
            Asked::ConfigureNmxCluster,
            Asked::PowerSequence(PowerSequence::Reset),
        ];
        let id = scene.started(Wanted { scope: Scope::default(), activities }).await;
        let run = scene.ended(&id).await;
        assert_eq!(run.phase(), RunPhase::Succeeded, "{:?}", run.progress.failure);
        assert_eq!(run.spec.initiator, "ada (T-1)");
        let rack = scene.until("Ready").await;
        assert!(rack.active.is_empty() && rack.maintenance_requested.is_empty());
        scene.nobody_is_held().await;
        let events = scene.engine().history(RACK, 0, 10_000).await.expect("a history");
        let said: Vec<&str> = events.iter().map(|event| event.message.as_str()).collect();
        for stage in ["at ConfigureNmxCluster", "at PowerSequence", "at Completed"] {
            assert!(said.contains(&stage), "{stage} is not in {said:?}");
        }
        // The fabric was as desired, and was not taken down.
        let status = scene.engine().racks().status(&id).await.expect("a status");
        let off = status.legs.iter().find(|leg| leg.name == "fabric-off").expect("a rack step");
        assert!(off.parts.iter().all(|part| part.run.is_none()), "{off:?}");
        let check = status.legs.last().expect("a rack step");
        assert_eq!(check.parts.len(), 5);
    });
}

/// The check of the fabric is only a check: if it fails, child runs configure each switch.
#[test]
fn a_fabric_that_is_not_there_is_formed_by_parts() {
    simulate(async {
        let scene = Scene::ready().await;
        let runs = scene.world.everything().await.runs;
        let whole = runs.iter().find(|kept| kept.run.spec.target.kind == TargetKind::Rack);
        let id = &whole.expect("an ingestion").run.spec.id;
        let status = scene.engine().racks().status(id).await.expect("a status");
        for name in ["fabric-off", "fabric-manager", "fabric-configured"] {
            let leg = status.legs.iter().find(|leg| leg.name == name).expect("a rack step");
            assert!(leg.parts.iter().all(|part| part.run.is_some()), "{leg:?}");
        }
    });
}

/// Rule 14: only devices in scope are checked.
#[test]
fn a_partial_scope_works_next_to_a_broken_neighbour() {
    simulate(async {
        let scene = Scene::ready().await;
        scene.fail("m-2", "power");
        scene.fail("m-2", "check");
        let id = scene.started(power(machines(&["m-1"]), PowerSequence::Reset)).await;
        assert_eq!(scene.ended(&id).await.phase(), RunPhase::Succeeded);
        scene.until("Ready").await;
    });
}

#[test]
fn a_failure_is_an_error_that_names_device_and_activity_until_somebody_goes_on() {
    simulate(async {
        let scene = Scene::ready().await;
        scene.fail("m-2", "power");
        let id = scene.started(power(Scope::default(), PowerSequence::Reset)).await;
        assert_eq!(scene.ended(&id).await.phase(), RunPhase::Failed);
        let rack = scene.until("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(cause.during, During::PowerSequence);
        assert_eq!(cause.device.as_ref().map(|device| device.as_str()), Some("m-2"));
        assert!(cause.trouble.said.contains("it is broken"), "{}", cause.trouble.said);
        assert!(cause.next.contains(&format!("farrier run retry-step {id}")), "{}", cause.next);
        assert!(rack.maintenance_requested.is_empty() && rack.active.is_empty());
        scene.nobody_is_held().await;
        tokio::time::sleep(Duration::from_secs(7_200)).await;
        scene.until("Error").await;
        // The hardware is repaired, and the operation resumes where it stopped.
        scene.world.sim.clear_faults(None).expect("cleared");
        scene.engine().runs().act(id.clone(), Action::RetryStep, who()).await.expect("accepted");
        assert_eq!(scene.ended(&id).await.phase(), RunPhase::Succeeded);
        scene.until("Ready").await;
        scene.nobody_is_held().await;
    });
}

/// Power states that were read back are recorded at once, also by a sequence that failed.
#[test]
fn what_is_on_and_what_is_off_is_known_after_every_sequence() {
    simulate(async {
        let scene = Scene::ready().await;
        let powers = async || {
            let devices = scene.view().await.devices;
            let words = devices.iter().map(|one| format!("{} {:?}", one.target, one.power));
            words.collect::<Vec<_>>().join(", ")
        };
        let all = |power: &str| {
            let ids = ["m-1", "m-2", "sw-1", "sw-2", "ps-1"];
            ids.map(|id| format!("{id} Some({power})")).join(", ")
        };
        assert_eq!(powers().await, all("On"));
        for (sequence, power) in [(PowerSequence::Off, "Off"), (PowerSequence::On, "On")] {
            let id = scene.started(self::power(Scope::default(), sequence)).await;
            assert_eq!(scene.ended(&id).await.phase(), RunPhase::Succeeded);
            assert_eq!(powers().await, all(power));
            scene.until("Ready").await;
        }
        scene.fail("m-2", "power");
        let id = scene.started(power(Scope::default(), PowerSequence::Reset)).await;
        let run = scene.ended(&id).await;
        let said = run.progress.failure.expect("it failed").fault.said;
        let left = "on: sw-1, sw-2, ps-1; off: m-1; not known: m-2";
        assert!(said.contains("m-2 (") && said.ends_with(left), "{said}");
        let rack = scene.until("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        let said = &cause.trouble.said;
        assert!(said.contains("it is broken") && said.ends_with(left), "{said}");
        assert!(powers().await.starts_with("m-1 Some(Off), m-2"), "{}", powers().await);
    });
}

/// A stage that times out or is canceled records them as well.
#[test]
fn a_sequence_that_is_stopped_says_what_it_has_left_on_and_off() {
    simulate(async {
        let scene = Scene::ready().await;
        let hang = FaultRule {
            machine: "m-1".into(),
            effect: "power".into(),
            ..FaultRule::new(sim::Action::Hang)
        };
        scene.world.sim.add_fault(hang).expect("a rule");
        let id = scene.started(power(machines(&["m-1", "m-2"]), PowerSequence::Off)).await;
        scene.until("Maintenance").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        scene.engine().runs().act(id.clone(), Action::Cancel, who()).await.expect("accepted");
        scene.ended(&id).await;
        let rack = scene.until("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        let said = &cause.trouble.said;
        assert!(said.ends_with("; off: m-2; not known: m-1"), "{said}");
    });
}

#[test]
fn a_new_request_leaves_an_error_too_and_the_old_one_may_not_go_on_then() {
    simulate(async {
        let scene = Scene::ready().await;
        scene.fail("m-2", "power");
        let id = scene.started(power(Scope::default(), PowerSequence::On)).await;
        scene.ended(&id).await;
        scene.until("Error").await;
        scene.world.sim.clear_faults(None).expect("cleared");
        let rerun = scene
            .engine()
            .runs()
            .restart(id.clone(), RestartMode::Rerun, "again".into(), who())
            .await;
        let rerun = rerun.expect("accepted").run;
        assert_eq!(rerun.spec.parent, Some(id.clone()));
        assert_eq!(scene.ended(&rerun.spec.id).await.phase(), RunPhase::Succeeded);
        scene.until("Ready").await;
        let told = scene.engine().runs().act(id, Action::RetryStep, who()).await;
        let Err(StoreError::Refused(refusal)) = told else { panic!("{told:?}") };
        assert_eq!(refusal.reason, "RUN_SUPERSEDED");
    });
}

#[test]
fn a_cancel_in_the_middle_leaves_an_error_and_nobody_held() {
    simulate(async {
        let scene = Scene::ready().await;
        let hang = FaultRule {
            machine: "m-1".into(),
            effect: "power".into(),
            ..FaultRule::new(sim::Action::Hang)
        };
        scene.world.sim.add_fault(hang).expect("a rule");
        let id = scene.started(power(machines(&["m-1", "m-2"]), PowerSequence::Off)).await;
        scene.until("Maintenance").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.engine().runs().act(id.clone(), Action::Cancel, who()).await.expect("accepted");
        assert_eq!(scene.ended(&id).await.phase(), RunPhase::Canceled);
        let rack = scene.until("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert!(cause.trouble.said.contains("was canceled by ada"), "{}", cause.trouble.said);
        scene.nobody_is_held().await;
    });
}

#[test]
fn disjoint_scopes_run_at_once_and_overlapping_ones_are_refused_by_name() {
    simulate(async {
        let scene = Scene::ready().await;
        let hang = FaultRule {
            effect: "power".into(),
            delay_ms: 60_000,
            ..FaultRule::new(sim::Action::Slow)
        };
        scene.world.sim.add_fault(hang).expect("a rule");
        let first = scene.started(power(machines(&["m-1"]), PowerSequence::Off)).await;
        scene.until("Maintenance").await;
        let second = scene.started(power(machines(&["m-2"]), PowerSequence::Off)).await;
        let refusal = scene.refused(power(machines(&["m-1"]), PowerSequence::On)).await;
        assert_eq!(refusal.reason, "MACHINE_BUSY");
        assert!(refusal.said.contains(first.as_str()), "{}", refusal.said);
        let refusal = scene.refused(Wanted::default()).await;
        assert_eq!(refusal.reason, "RACK_NOT_READY");
        tokio::time::sleep(Duration::from_secs(10)).await;
        for id in [&first, &second] {
            let run = scene.engine().runs().get(id).await.expect("a run");
            assert_eq!(run.phase(), RunPhase::Running, "{id}");
        }
        for id in [&first, &second] {
            assert_eq!(scene.ended(id).await.phase(), RunPhase::Succeeded, "{id}");
        }
        scene.until("Ready").await;
        scene.nobody_is_held().await;
    });
}

#[test]
fn firmware_that_is_not_there_is_skipped_or_an_error_and_never_as_if_applied() {
    simulate(async {
        let scene = Scene::ready().await;
        add_firmware(&scene.world.store, firmware("fw-0", "9.9", false, false)).await;
        let with = |id: &str| Wanted {
            scope: Scope::default(),
            activities: vec![Asked::FirmwareUpgrade(Some(FirmwareId::trusted(id)))],
        };
        let id = scene.started(with("fw-0")).await;
        let run = scene.ended(&id).await;
        assert_eq!(run.phase(), RunPhase::Succeeded);
        let skipped = run.spec.params.get("firmware_skipped").expect("a recorded reason");
        assert!(skipped.contains("fw-0 is not available"), "{skipped}");
        assert!(run.spec.steps.iter().all(|step| !step.name.starts_with("firmware-")));
        scene.until("Ready").await;
        let id = scene.started(with("fw-none")).await;
        let run = scene.ended(&id).await;
        assert_eq!(run.phase(), RunPhase::Failed);
        let rack = scene.until("Error").await;
        let RackState::Error { cause } = &rack.state else { panic!("{rack:?}") };
        assert_eq!(
            (cause.during, cause.trouble.code.as_str()),
            (During::FirmwareUpgrade, "firmware-unknown")
        );
        let told = scene.engine().runs().act(id, Action::RetryStep, who()).await;
        let Err(StoreError::Refused(refusal)) = told else { panic!("{told:?}") };
        assert_eq!(refusal.reason, "NOTHING_PLANNED");
    });
}

#[test]
fn a_reprovision_comes_before_what_was_asked_for_earlier() {
    simulate(async {
        let scene = Scene::ready().await;
        // Both are accepted before the rack has a turn: the runtime has one thread.
        let pending = scene.started(power(machines(&["m-1"]), PowerSequence::On)).await;
        let trigger = Trigger::Reprovision;
        let force = Some("a test".to_string());
        let reprovision = MaintenanceStart { trigger, force, ..asked(Wanted::default()) };
        let started = scene.engine().racks().maintain(reprovision).await;
        let id = started.expect("accepted").run.expect("an operation").spec.id;
        let asked = scene.view().await.rack;
        assert_eq!(asked.reprovision_requested, Some(id.clone()));
        assert_eq!(asked.maintenance_requested, std::slice::from_ref(&pending));
        let first = scene.ended(&pending).await;
        assert_eq!(first.phase(), RunPhase::Canceled, "it was superseded");
        assert_eq!(first.progress.started_at, None, "it never started");
        assert!(scene.view().await.rack.maintenance_requested.is_empty());
        assert_eq!(scene.ended(&id).await.phase(), RunPhase::Succeeded);
        scene.until("Ready").await;
        scene.nobody_is_held().await;
    });
}

#[test]
fn ids_that_are_unknown_or_of_another_rack_are_refused_with_their_field() {
    simulate(async {
        let scene = Scene::ready().await;
        scene.place("m-9", None, None).await.expect("registered");
        for (id, said) in [("m-9", "stands in no rack"), ("m-8", "is not known")] {
            let refusal = scene.refused(power(machines(&["m-1", id]), PowerSequence::On)).await;
            assert_eq!(refusal.field.as_deref(), Some("scope.machine_ids[1]"));
            assert!(refusal.said.contains(&format!("{id} {said}")), "{}", refusal.said);
        }
        let switches = vec![SwitchId::trusted("sw-2")];
        let scope = Scope { switches, ..Scope::default() };
        let activities = vec![Asked::ConfigureNmxCluster];
        let refusal = scene.refused(Wanted { scope, activities }).await;
        assert!(refusal.said.contains("primary switch sw-1"), "{}", refusal.said);
        let power_shelves = vec![PowerShelfId::trusted("ps-7")];
        let scope = Scope { power_shelves, ..Scope::default() };
        let refusal = scene.refused(Wanted { scope, activities: Vec::new() }).await;
        assert_eq!(refusal.field.as_deref(), Some("scope.power_shelf_ids[0]"));
    });
}

#[test]
fn places_are_checked_and_racks_are_told_of_moves() {
    simulate(async {
        let scene = Scene::ready().await;
        let taken = scene.add_machine("m-3", Some(10)).await;
        let Err(StoreError::Refused(refusal)) = taken else { panic!("{taken:?}") };
        assert_eq!(refusal.field.as_deref(), Some("machine.spec.slot"));
        assert!(refusal.said.contains("m-1 stands in rack-1"), "{}", refusal.said);
        let nowhere = scene.place("m-3", Some("rack-9"), None).await;
        let Err(StoreError::Refused(refusal)) = nowhere else { panic!("{nowhere:?}") };
        assert_eq!(refusal.field.as_deref(), Some("machine.spec.rack_id"));
        scene.add_machine("m-3", Some(12)).await.expect("registered");
        // It reads its devices again, and brings the new one into service.
        for _ in 0..PATIENCE {
            if scene.path().await.iter().filter(|word| *word == "Validating").count() == 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let path = scene.path().await;
        assert_eq!(path.iter().filter(|word| *word == "Discovering").count(), 2, "{path:?}");
        scene.until("Ready").await;
        scene.nobody_is_held().await;
    });
}

/// The lowest slot makes a switch the primary, so a changed slot wakes the rack; others do not.
#[test]
fn a_rack_is_told_of_a_move_within_it() {
    simulate(async {
        let scene = Scene::ready().await;
        let moved = async |slot: u32| {
            let spec = DeviceSpec { provider: "sim".into(), ..DeviceSpec::default() };
            let spec = PlacedSpec { spec, rack: Some(RackId::trusted(RACK)), slot: Some(slot) };
            let (id, labels) = ("sw-2".into(), Labels::new());
            let described = DescribedDevice { id, spec: Some(spec), labels };
            let done = scene.engine().devices().register::<Switch>(described, "test".into()).await;
            done.expect("moved");
            let rack =
                scene.engine().racks().get(&RackId::trusted(RACK)).await.expect("a rack").rack;
            rack.topology_changed
        };
        let primary = async || {
            let all = scene.engine().racks().operations(&RackId::trusted(RACK)).await;
            let legs = all.expect("a status").remove(0).legs;
            let manager = legs.into_iter().find(|leg| leg.name == "fabric-manager");
            manager.expect("a rack step").parts.remove(0).target.to_string()
        };
        assert!(!moved(3).await, "the slot is unchanged");
        assert_eq!(primary().await, "sw-1");
        assert!(moved(0).await);
        for _ in 0..PATIENCE {
            if scene.path().await.iter().filter(|word| *word == "Validating").count() == 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        scene.until("Ready").await;
        assert_eq!(primary().await, "sw-2");
    });
}

#[test]
fn a_machine_stays_in_its_rack_while_an_operation_holds_it() {
    simulate(async {
        let scene = Scene::ready().await;
        let hang = FaultRule {
            effect: "power".into(),
            delay_ms: 60_000,
            ..FaultRule::new(sim::Action::Slow)
        };
        scene.world.sim.add_fault(hang).expect("a rule");
        let id = scene.started(power(machines(&["m-1"]), PowerSequence::Off)).await;
        let taken_out = scene.place("m-1", None, None).await;
        let Err(StoreError::Refused(refusal)) = taken_out else { panic!("{taken_out:?}") };
        assert_eq!(refusal.reason, "MACHINE_BUSY");
        assert!(refusal.said.contains(id.as_str()), "{}", refusal.said);
        scene.ended(&id).await;
        scene.place("m-1", None, None).await.expect("moved");
    });
}

/// A switch record without the required fields.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Half {
    head: Head,
}

impl Lifecycle for Half {
    const KIND: SubjectKind = SubjectKind::Switch;
    const STATES: &'static [&'static str] = &["Ready"];
    type Seen = ();

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        "Ready"
    }

    fn next(&self, (): &(), _now: Timestamp) -> Next<Self> {
        Next::Rest(Why::new("never claimed"))
    }
}

async fn add_half(tx: &mut Tx, now: Timestamp) -> Result<()> {
    let mut head = Head::new("sw-9", Labels::new(), now);
    head.rack = Some(RackId::trusted(RACK));
    tx.insert_record(&mut Half { head }, &event(now)).await
}

/// The rack reports the bad record, skips it, and continues with the other devices.
#[test]
fn a_device_that_cannot_be_read_keeps_nobody_from_its_neighbours() {
    simulate(async {
        let scene = Scene::ready().await;
        let now = scene.world.now();
        let added =
            scene.world.store.write("add_half", now, |now, tx| Box::pin(add_half(tx, *now)));
        added.await.expect("added");
        let devices = scene.view().await.devices;
        assert_eq!(devices.len(), 6);
        let half = devices
            .iter()
            .find(|one| one.target.as_str() == "sw-9")
            .expect("the unreadable device");
        assert_eq!(half.state, "Unreadable");
        let named = vec![SwitchId::trusted("sw-9")];
        let scope = Scope { switches: named, ..Scope::default() };
        let refused = scene.start(power(scope, PowerSequence::On)).await;
        assert!(refused.is_err(), "{refused:?}");
        for scope in [machines(&["m-1"]), Scope::default()] {
            let id = scene.started(power(scope, PowerSequence::Reset)).await;
            let run = scene.ended(&id).await;
            assert_eq!(run.phase(), RunPhase::Succeeded, "{:?}", run.progress.failure);
            assert!(run.spec.claims.iter().all(|claim| claim.as_str() != "sw-9"));
            scene.until("Ready").await;
        }
    });
}

#[test]
fn a_rack_is_deleted_when_it_is_empty_or_by_force() {
    simulate(async {
        let scene = Scene::ready().await;
        let id = RackId::trusted(RACK);
        let kept = scene.engine().racks().delete(id.clone(), false, "ada".into()).await;
        let Err(StoreError::Refused(refusal)) = kept else { panic!("{kept:?}") };
        assert_eq!(refusal.reason, "RACK_NOT_EMPTY");
        let before = scene.path().await;
        let rehearsed =
            scene.engine().with_dry_run(true).racks().delete(id.clone(), true, "ada".into()).await;
        let foreseen = rehearsed.expect("a dry run");
        assert!(foreseen.rack.head.deleted && foreseen.devices.len() > 1, "{foreseen:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(scene.path().await, before);
        assert!(!scene.engine().racks().get(&id).await.expect("a rack").rack.head.deleted);
        scene.engine().racks().delete(id.clone(), true, "ada".into()).await.expect("marked");
        for _ in 0..PATIENCE {
            if scene.engine().racks().get(&id).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let gone = scene.engine().racks().get(&id).await;
        assert!(matches!(gone, Err(StoreError::Refused(_))), "{gone:?}");
        let machine = scene.world.machine("m-1").await;
        assert_eq!((machine.spec.rack, machine.spec.slot), (None, None));
    });
}
