//! The simulated datacenter: machines that are registered at start, and in the demo also their
//! racks, switches and power shelves, and a site where some of the machines are nodes.

use crate::config::Sim;
use crate::netboot::artifacts::Artifacts;
use engine::node::Onboard;
use engine::rack::RackDescription;
use engine::{DescribedDevice, DescribedMachine, Engine, PlacedSpec, SiteDescription};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use model::device::Device;
use model::firmware::{DEVICES, Firmware, FirmwareComponent};
use model::gate::Overrides;
use model::id::{FirmwareId, MachineId, PowerShelfId, RackId, SiteId};
use model::image::{DiskFormat, Image, ImageContent};
use model::lifecycle::DeviceSpec;
use model::machine::{Labels, MachineSpec};
use model::power_shelf::PowerShelf;
use model::rack::{Counts, RackSpec, RackState};
use model::refusal::Reason;
use model::run::actions::Requester;
use model::site::SiteSpec;
use model::switch::Switch;
use model::time::Timestamp;
use std::time::Duration;
use store::{Result, StoreError};

pub(crate) const RACKS: usize = 2;
pub(crate) const PER_RACK: usize = 18;
const SWITCHES: usize = 3;
const SHELVES: usize = 2;
/// The number of machines that become nodes: the uppermost ones of the last rack.
const NODES: usize = 4;
const SITE: &str = "site-demo";
/// The images of a simulated fleet. The first is the default of a server.
const IMAGES: [&str; 4] = ["ubuntu-2204", "ubuntu-2404", "debian-12", "rhel-9"];
const HARDWARE_TYPE: &str = "demo";
const FIRMWARE: &str = "fw-demo-2.0";
/// The interval at which the rack of the nodes is read until it is in service.
const ONBOARDING_INTERVAL: Duration = Duration::from_secs(1);
/// The number of machines that are registered concurrently.
const AT_ONCE: usize = 64;

/// Two racks of eighteen machines each. From the bottom: a shelf, nine machines, the switches, nine
/// machines, a shelf. Both shelves of a rack feed all of its other devices.
pub(crate) async fn register_demo(engine: &Engine) -> Result<()> {
    create_firmware(engine).await?;
    for rack in 1..=RACKS {
        let env = if rack == 1 { "prod" } else { "stage" };
        let position = create_rack(engine, rack, env).await?;
        let mut feeds = Vec::new();
        for number in 1..=SHELVES {
            let bottom = number == 1;
            let slot = if bottom { 1 } else { 1 + PER_RACK + SWITCHES + 1 };
            let at = Place { rack: position.clone(), slot: slot as u32, feeds: Vec::new() };
            let id = format!("ps-r{rack}-{number}");
            register_device::<PowerShelf>(engine, &id, (rack, 200 + number), env, at).await?;
            feeds.push(PowerShelfId::trusted(id));
        }
        let place =
            |slot: usize| Place { rack: position.clone(), slot: slot as u32, feeds: feeds.clone() };
        for slot in 1..=PER_RACK {
            let id = format!("r{rack}-m{slot:02}");
            let above = if slot > PER_RACK / 2 { SWITCHES } else { 0 };
            register(engine, &id, (rack, slot), env, Some(place(1 + slot + above))).await?;
        }
        for number in 1..=SWITCHES {
            let at = place(1 + PER_RACK / 2 + number);
            let id = format!("sw-r{rack}-{number}");
            register_device::<Switch>(engine, &id, (rack, 100 + number), env, at).await?;
        }
    }
    create_site(engine).await
}

/// The images that the catalogue has from the start.
pub(crate) fn images(sim: &Sim, demo: bool) -> Vec<String> {
    match sim.images.is_empty() && (demo || sim.machines > 0) {
        true => IMAGES.map(String::from).to_vec(),
        false => sim.images.clone(),
    }
}

/// Adds images to the catalogue, each with a small file. An image that exists is not changed.
pub(crate) async fn create_images(
    engine: &Engine,
    artifacts: &Artifacts,
    names: &[String],
) -> Result<()> {
    for name in names {
        let content = format!("Simulated image {name}: only simulated machines install it.\n");
        let file = artifacts.store_own(content.into_bytes()).await?;
        let body = ImageContent::Disk { format: DiskFormat::Raw, file };
        let image = Image { name: name.clone(), body, created_at: Timestamp::default() };
        let requester = Requester { by: "demo".into(), reason: String::new() };
        match engine.images().create(image, requester).await {
            Ok(_) => {}
            Err(StoreError::Refused(refusal)) if refusal.reason == Reason::ImageExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds the firmware that the racks install when they come into service. After the first start the
/// catalogue belongs to the operator.
async fn create_firmware(engine: &Engine) -> Result<()> {
    match engine.racks().get(&RackId::trusted("rack-r1")).await {
        Ok(_) | Err(StoreError::Corrupt(_)) => return Ok(()),
        Err(StoreError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    let component = |name: &str| FirmwareComponent {
        name: name.into(),
        version: "2.0".into(),
        url: format!("https://firmware.example/{}-2.0.bin", name.to_lowercase()),
        sha256: "0".repeat(64),
    };
    let firmware = Firmware {
        id: FirmwareId::trusted(FIRMWARE),
        hardware_type: HARDWARE_TYPE.into(),
        description: "The first update of the simulated devices".into(),
        components: DEVICES.map(|kind| (kind, vec![component("BMC")])).into(),
        is_default: true,
        available: true,
        created_at: Timestamp::default(),
        version: 0,
    };
    match engine.firmware().get(&firmware.id).await {
        Ok(_) | Err(StoreError::Corrupt(_)) => return Ok(()),
        Err(StoreError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    let requester = Requester { by: "demo".into(), reason: String::new() };
    engine.firmware().create(firmware, requester).await.map(drop)
}

/// Onboards some machines once their rack is in service: a machine that is being onboarded would
/// keep its rack waiting.
pub(crate) fn spawn_onboarding(engine: Engine) {
    tokio::spawn(async move {
        loop {
            match onboard_when_ready(&engine).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "the demo's nodes are not onboarded yet"),
            }
            tokio::time::sleep(ONBOARDING_INTERVAL).await;
        }
    });
}

/// False while the rack is not in service.
async fn onboard_when_ready(engine: &Engine) -> Result<bool> {
    let rack = RackId::trusted(format!("rack-r{RACKS}"));
    match engine.racks().get(&rack).await?.rack.state {
        RackState::Ready | RackState::Error { .. } => {}
        RackState::Created
        | RackState::Discovering
        | RackState::Maintenance { .. }
        | RackState::Validating
        | RackState::Deleting => return Ok(false),
    }
    onboard_nodes(engine).await?;
    Ok(true)
}

/// Creates the site unless it exists.
async fn create_site(engine: &Engine) -> Result<()> {
    let site = SiteId::trusted(SITE);
    match engine.sites().get(&site).await {
        Ok(_) | Err(StoreError::Corrupt(_)) => return Ok(()),
        Err(StoreError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    let spec = SiteSpec { provider: providers::sim::Sim::NAME.into(), ..SiteSpec::default() };
    let described = SiteDescription { id: site, spec, labels: Labels::new() };
    let requester = Requester { by: "demo".into(), reason: String::new() };
    engine.sites().create(described, requester).await.map(drop)
}

/// Onboards some machines. Existing nodes are not changed.
async fn onboard_nodes(engine: &Engine) -> Result<()> {
    for slot in PER_RACK - NODES + 1..=PER_RACK {
        let desired = Onboard {
            machine: MachineId::trusted(format!("r{RACKS}-m{slot:02}")),
            site: SiteId::trusted(SITE),
            overrides: Overrides::default(),
            // The same id at every start: a node that was removed since does not come back.
            request_id: "demo".into(),
            by: "demo".into(),
        };
        match engine.nodes().onboard(desired).await {
            Ok(_) => {}
            // The machine is used for something else now.
            Err(error @ (StoreError::Refused(_) | StoreError::Corrupt(_))) => {
                tracing::debug!(%error, "demo machine not onboarded");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Creates a rack unless it exists.
async fn create_rack(engine: &Engine, rack: usize, env: &str) -> Result<RackId> {
    let id = RackId::trusted(format!("rack-r{rack}"));
    match engine.racks().get(&id).await {
        Ok(_) | Err(StoreError::Corrupt(_)) => return Ok(id),
        Err(StoreError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    let count = |number: usize| number as u32;
    let expected = Counts {
        machines: count(PER_RACK),
        switches: count(SWITCHES),
        power_shelves: count(SHELVES),
    };
    let labels = Labels::from([
        ("env".to_string(), env.to_string()),
        ("location".to_string(), format!("hall-1/r{rack}")),
    ]);
    let spec = RackSpec { hardware_type: HARDWARE_TYPE.into(), expected, ..RackSpec::default() };
    let described = RackDescription { id: id.clone(), labels, spec };
    engine.racks().create(described, "demo".into()).await?;
    Ok(id)
}

/// The position of a device in its rack, and the power shelves that feed it.
struct Place {
    rack: RackId,
    slot: u32,
    feeds: Vec<PowerShelfId>,
}

/// Registers a device unless it exists.
async fn register_device<D: Device>(
    engine: &Engine,
    id: &str,
    (rack, number): (usize, usize),
    env: &str,
    at: Place,
) -> Result<()> {
    match engine.devices().get::<D>(id).await {
        // An unreadable row exists too.
        Ok(_) | Err(StoreError::Corrupt(_)) => return Ok(()),
        Err(StoreError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    let spec = DeviceSpec {
        provider: providers::sim::Sim::NAME.into(),
        bmc_endpoint: format!("10.128.{rack}.{number}"),
        feeds: at.feeds,
        ..DeviceSpec::default()
    };
    let labels = Labels::from([("env".to_string(), env.to_string())]);
    let spec = Some(PlacedSpec { spec, rack: Some(at.rack), slot: Some(at.slot) });
    let described = DescribedDevice { id: id.into(), spec, labels };
    engine.devices().register::<D>(described, "demo".into()).await.map(drop)
}

/// Registers `count` machines, forty to a rack.
pub(crate) async fn register_fleet(engine: &Engine, count: usize) -> Result<()> {
    let each = stream::iter(0..count).map(|index| async move {
        let (rack, slot) = (index / 40 + 1, index % 40 + 1);
        register(engine, &format!("sim-{:05}", index + 1), (rack, slot), "sim", None).await
    });
    // Concurrent requests share commits.
    each.buffer_unordered(AT_ONCE).try_collect().await
}

/// Registers a machine unless it exists.
async fn register(
    engine: &Engine,
    id: &str,
    (rack, slot): (usize, usize),
    env: &str,
    at: Option<Place>,
) -> Result<()> {
    let machine_id = MachineId::trusted(id);
    match engine.machines().get(&machine_id).await {
        // An unreadable row exists too.
        Ok(_) | Err(StoreError::Corrupt(_)) => return Ok(()),
        Err(StoreError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    let mut labels = Labels::from([
        ("env".to_string(), env.to_string()),
        ("rack".to_string(), format!("r{rack}")),
    ]);
    // A machine in a rack has a slot of its own.
    if at.is_none() {
        labels.insert("slot".into(), slot.to_string());
    }
    let (high, low) = (rack % 256, slot % 256);
    let spec = MachineSpec {
        ssh_endpoint: format!("10.{}.{high}.{low}:22", rack / 256),
        bmc_endpoint: format!("10.{}.{high}.{low}", 128 + rack / 256),
        target_cluster_ref: "cluster-a".into(),
        mac_addresses: vec![format!("02:00:00:{:02x}:{high:02x}:{low:02x}", rack / 256)],
        provider: providers::sim::Sim::NAME.into(),
        serial: format!("SIM{rack:03}{slot:03}"),
        rack: at.as_ref().map(|at| at.rack.clone()),
        slot: at.as_ref().map(|at| at.slot),
        feeds: at.map(|at| at.feeds).unwrap_or_default(),
        ..MachineSpec::default()
    };
    let machine = DescribedMachine { id: Some(machine_id), spec: Some(spec), labels };
    engine.machines().register(machine, "demo".into()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::effect::DesiredPower;
    use model::filter::{Filter, FilterSubject};
    use model::gate::Gate;
    use model::node::NodeState;
    use model::power_shelf::maintenance::PowerChangeRequest;
    use providers::Providers;
    use providers::clock::tokio_clock;
    use providers::sim::{Sim, Speed};
    use std::sync::Arc;
    use store::{AppliedQuery, Options, Store};

    /// The longest time until both racks are in service, which README calls half a minute.
    const MAX_WAIT: Duration = Duration::from_secs(40);

    async fn demo() -> Engine {
        let clock = tokio_clock(Timestamp::from_millis(1_780_000_000_000));
        let sim = Sim::in_ram(Speed::Human).with_clock(clock.clone());
        let store = Store::open(&Options::Memory).await.unwrap();
        let settings = engine::Settings { replica: "demo".into(), ..Default::default() };
        let providers = Providers::default().with(Arc::new(sim));
        let random = engine::random::system();
        let engine = Engine::start_up(store, providers, settings, clock, random).await.unwrap();
        register_demo(&engine).await.unwrap();
        spawn_onboarding(engine.clone());
        engine
    }

    async fn in_service(engine: &Engine) -> bool {
        for rack in 1..=RACKS {
            let id = RackId::trusted(format!("rack-r{rack}"));
            if engine.racks().get(&id).await.unwrap().rack.state != RackState::Ready {
                return false;
            }
        }
        true
    }

    /// Both shelves of a rack feed its machines and switches: without them, these are off, and the
    /// explanation names the shelves. In simulated time.
    #[tokio::test(start_paused = true)]
    async fn a_rack_without_its_shelves_is_off() {
        let engine = demo().await;
        while !in_service(&engine).await {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let request = |ids: &[&str], operation| PowerChangeRequest {
            ids: ids.iter().map(|id| PowerShelfId::trusted(*id)).collect(),
            operation,
            initiator: "ada".into(),
            overrides: Overrides::of(&[Gate::InService], "a test"),
            request_id: None,
        };
        let started = engine.now();
        let until = async |reached: fn(&str) -> bool, id: &str| loop {
            let told = engine.explain(id).await.unwrap().explanation;
            if reached(&told.headline) {
                return told;
            }
            let waited = engine.now().since(started);
            assert!(waited < Duration::from_secs(3_600), "{told:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let shelves = engine.power_shelves();
        shelves.maintain(request(&["ps-r1-1"], DesiredPower::Off)).await.unwrap();
        until(|told| told.contains("switched off"), "ps-r1-1").await;
        shelves.maintain(request(&["ps-r1-2"], DesiredPower::Off)).await.unwrap();
        until(|told| told.contains("switched off"), "ps-r1-2").await;
        for device in ["r1-m07", "sw-r1-2"] {
            let told = until(|told| told.contains("no power shelf that feeds"), device).await;
            assert!(told.headline.contains("ps-r1-1, ps-r1-2 are off"), "{told:?}");
            let on = "farrier power-shelf maintenance power-on --id ps-r1-1 --id ps-r1-2";
            assert_eq!(told.next_commands[0], on, "{told:?}");
        }
        let both = request(&["ps-r1-1", "ps-r1-2"], DesiredPower::On);
        shelves.maintain(both).await.unwrap();
        until(|told| told.ends_with("is new: registered, and never provisioned"), "r1-m07").await;
    }

    /// A node whose machine has no power stays offline until a shelf is on again. In simulated
    /// time.
    #[tokio::test(start_paused = true)]
    async fn nodes_without_power_stay_offline() {
        let engine = demo().await;
        let states = async || {
            let page = engine.nodes().list(Filter::default(), None, 10).await.unwrap();
            page.records.iter().map(|node| node.state).collect::<Vec<NodeState>>()
        };
        let until = async |wanted: NodeState| {
            for _ in 0..3_600 {
                let found = states().await;
                if found.len() == 4 && found.iter().all(|state| *state == wanted) {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            panic!("the nodes are {:?}, not {wanted}", states().await);
        };
        let switch = async |shelf: &str, operation| {
            let request = PowerChangeRequest {
                ids: vec![PowerShelfId::trusted(shelf)],
                operation,
                initiator: "ada".into(),
                overrides: Overrides::of(&[Gate::InService], "a test"),
                request_id: None,
            };
            engine.power_shelves().maintain(request).await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
        };
        until(NodeState::Active).await;
        switch("ps-r2-1", DesiredPower::Off).await;
        switch("ps-r2-2", DesiredPower::Off).await;
        until(NodeState::Offline).await;
        for _ in 0..600 {
            assert_eq!(states().await, [NodeState::Offline; 4]);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        switch("ps-r2-1", DesiredPower::On).await;
        until(NodeState::Active).await;
    }

    /// In simulated time, at the speed of the demo.
    #[tokio::test(start_paused = true)]
    async fn the_first_maintenance_of_a_rack_installs_the_firmware_of_the_catalogue() {
        let engine = demo().await;
        let began = engine.now();
        while !in_service(&engine).await {
            let waited = engine.now().since(began);
            assert!(waited < MAX_WAIT, "the racks are not in service after {waited:?}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let machine = engine.machines().get(&MachineId::trusted("r1-m01")).await.unwrap();
        assert!(machine.active_run.is_none(), "{machine:?}");
        let filter = Filter::parse("changed=true", FilterSubject::FirmwareHistory).unwrap();
        let query = AppliedQuery { filter, ..AppliedQuery::default() };
        let applied = engine.firmware().applied(query, 1_000).await.unwrap();
        assert_eq!(applied.len(), RACKS * (PER_RACK + SWITCHES + SHELVES));
        let active = Filter::in_states(&["active"]);
        while engine.nodes().list(active.clone(), None, 10).await.unwrap().records.len() < NODES {
            assert!(engine.now().since(began) < MAX_WAIT * 3, "the nodes are not in service");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}
