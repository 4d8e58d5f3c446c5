//! A rack of two machines, two switches and a power shelf in a test environment, and what the tests
//! request of it.

use crate::test_env::{Process, TestEnv};
use engine::rack::{MaintenanceStart, MaintenanceStartResult, RackDescription, RackView};
use engine::{DescribedMachine, Engine, Settings};
use model::effect::DeviceFacts;
use model::firmware::{Firmware, FirmwareComponent};
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::lifecycle::{DeviceSpec, Lifecycle, RecordHeader};
use model::machine::{Labels, MachineSpec};
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::rack::maintenance::{
    MaintenanceScope, MaintenanceTrigger, PowerSequence, RackMaintenanceRequest, RequestedActivity,
};
use model::rack::{Counts, Rack, RackSpec};
use model::refusal::Refusal;
use model::run::Run;
use model::run::actions::Requester;
use model::switch::{Switch, SwitchState};
use model::target::TargetKind;
use model::time::Timestamp;
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::{Cause, NewEvent, Result, Store, StoreError, Tx};

pub const RACK: &str = "rack-1";
pub const MAX_POLLS: u32 = 20_000;

pub struct RackFixture {
    pub env: TestEnv,
    process: Process,
}

impl RackFixture {
    /// A rack of two machines, two switches and a shelf, in service.
    pub async fn ready() -> Self {
        let fixture =
            Self::with_expected(Counts { machines: 2, switches: 2, power_shelves: 1 }).await;
        fixture.add_devices().await;
        fixture.wait_for_state("Ready").await;
        fixture
    }

    pub async fn with_expected(expected: Counts) -> Self {
        Self::with_settings(Settings { replica: "a".into(), ..Settings::default() }, expected).await
    }

    pub async fn with_settings(settings: Settings, expected: Counts) -> Self {
        let world = TestEnv::new(7).await;
        let process = world.boot_with(settings).await;
        let firmware = firmware("fw-1", "2.0", true, true);
        add_firmware(&world.store, firmware).await;
        let fixture = Self { env: world, process };
        fixture.create(expected).await;
        fixture
    }

    pub fn engine(&self) -> &Engine {
        &self.process.engine
    }

    async fn create(&self, expected: Counts) {
        let spec = RackSpec { hardware_type: "gb200".into(), expected, ..RackSpec::default() };
        let described = RackDescription { id: RackId::trusted(RACK), labels: Labels::new(), spec };
        self.engine().racks().create(described, "test".into()).await.expect("created");
    }

    pub async fn add_devices(&self) {
        self.add_device(TargetKind::PowerShelf, "ps-1", 1).await;
        self.add_device(TargetKind::Switch, "sw-2", 3).await;
        self.add_device(TargetKind::Switch, "sw-1", 2).await;
        self.add_machine("m-1", Some(10)).await.expect("registered");
        self.add_machine("m-2", Some(11)).await.expect("registered");
    }

    pub async fn add_machine(&self, id: &str, slot: Option<u32>) -> Result<()> {
        self.place(id, Some(RACK), slot).await
    }

    pub async fn place(&self, id: &str, rack: Option<&str>, slot: Option<u32>) -> Result<()> {
        let rack = rack.map(RackId::trusted);
        let spec = MachineSpec { provider: "sim".into(), rack, slot, ..MachineSpec::default() };
        let id = Some(MachineId::trusted(id));
        let described = DescribedMachine { id, spec: Some(spec), labels: Labels::new() };
        self.engine().machines().register(described, "test".into()).await.map(|_| ())
    }

    /// Inserts a device that is already in service.
    pub async fn add_device(&self, kind: TargetKind, id: &str, slot: u32) {
        let (id, now) = (id.into(), self.env.now());
        let add = AddDevice { kind, id, slot, now };
        let added = self.env.store.write("add_device", add, |add, tx| Box::pin(add.run(tx)));
        added.await.expect("added");
    }

    pub async fn view(&self) -> RackView {
        self.engine().racks().get(&RackId::trusted(RACK)).await.expect("a rack")
    }

    pub async fn wait_for_state(&self, name: &str) -> Rack {
        for _ in 0..MAX_POLLS {
            let view = self.view().await;
            if view.rack.state_name() == name {
                return view.rack;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let view = self.view().await;
        let path = self.rack_states().await;
        panic!("{RACK} is never {name}, but {:?}: {}; {path:?}", view.rack.state, view.waits_for);
    }

    pub async fn start(&self, desired: RackMaintenanceRequest) -> Result<MaintenanceStartResult> {
        self.engine().racks().maintain(maintenance_request(desired)).await
    }

    pub async fn start_accepted(&self, desired: RackMaintenanceRequest) -> RunId {
        self.start(desired).await.expect("accepted").run.expect("an operation").spec.id
    }

    pub async fn start_refused(&self, desired: RackMaintenanceRequest) -> Refusal {
        match self.start(desired).await {
            Err(StoreError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    pub async fn wait_until_ended(&self, id: &RunId) -> Run {
        for _ in 0..MAX_POLLS {
            let run = self.engine().runs().get(id).await.expect("a run");
            if run.ended() {
                return run;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{id} never ends")
    }

    /// The states in the history of the rack.
    pub async fn rack_states(&self) -> Vec<String> {
        let events = self.engine().history(RACK, 0, 10_000).await.expect("a history");
        // A refused request is in the history, with a word of its own.
        let states = events.into_iter().map(|event| event.state).filter(|state| state != "refused");
        let mut words: Vec<String> = states.collect();
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
        self.env.sim.add_fault(rule).expect("a rule");
    }

    /// No device stays held at the end. A released switch first checks itself.
    pub async fn wait_until_released(&self) {
        for _ in 0..MAX_POLLS {
            let devices = self.view().await.devices;
            if devices.iter().all(|device| device.active_run.is_none()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("a device is still held: {:?}", self.view().await.devices);
    }
}

pub fn maintenance_request(desired: RackMaintenanceRequest) -> MaintenanceStart {
    MaintenanceStart {
        rack_id: RackId::trusted(RACK),
        request: desired,
        trigger: MaintenanceTrigger::OnDemand,
        request_id: String::new(),
        by: "ada".into(),
        reference: "T-1".into(),
        overrides: model::gate::Overrides::default(),
        dry_run: false,
    }
}

pub fn machines(ids: &[&str]) -> MaintenanceScope {
    MaintenanceScope {
        machines: ids.iter().map(|id| MachineId::trusted(*id)).collect(),
        ..MaintenanceScope::default()
    }
}

pub fn power(scope: MaintenanceScope, sequence: PowerSequence) -> RackMaintenanceRequest {
    RackMaintenanceRequest { scope, activities: vec![RequestedActivity::PowerSequence(sequence)] }
}

pub fn requester() -> Requester {
    Requester { by: "ada".into(), reason: "a test".into() }
}

pub fn firmware(id: &str, version: &str, is_default: bool, available: bool) -> Firmware {
    let component = FirmwareComponent {
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
        version: 0,
    }
}

pub fn event(at: Timestamp) -> NewEvent {
    let (actor, message) = ("test".into(), "set up".into());
    NewEvent { cause: Cause::Admin, actor, message, decided_by: "a test".into(), at }
}

pub async fn add_firmware(store: &Store, firmware: Firmware) {
    let added = store.write("add_firmware", firmware, |firmware, tx| {
        let mut firmware = firmware.clone();
        let event = event(Timestamp::default());
        Box::pin(async move { tx.insert_firmware(&mut firmware, &event).await })
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
        let mut head = RecordHeader::new(self.id.as_str(), Labels::new(), self.now);
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
                shelf.facts = DeviceFacts::default();
                tx.insert_record(&mut shelf, &event(self.now)).await?;
            }
            TargetKind::Machine | TargetKind::Rack => panic!("not added here"),
        }
        let mut rack = tx.record_locked::<Rack>(RACK).await?.expect("a rack");
        rack.topology_changed = true;
        tx.update_and_enqueue(&mut rack, &event(self.now))
    }
}
