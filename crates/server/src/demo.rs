//! The simulated datacenter: machines that are registered at start, and in the demo also their
//! racks, switches and power shelves, and a site where some of the machines are nodes.

use engine::node::Onboard;
use engine::rack::RackDescription;
use engine::{DescribedDevice, DescribedMachine, Engine, PlacedSpec, SiteDescription};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use model::device::Device;
use model::gate::Overrides;
use model::id::{MachineId, RackId, SiteId};
use model::lifecycle::DeviceSpec;
use model::machine::{Labels, MachineSpec};
use model::power_shelf::PowerShelf;
use model::rack::{Counts, RackSpec};
use model::run::actions::Requester;
use model::site::SiteSpec;
use model::switch::Switch;
use store::{Result, StoreError};

pub(crate) const RACKS: usize = 2;
pub(crate) const PER_RACK: usize = 18;
const SWITCHES: usize = 3;
const SHELVES: usize = 2;
/// The number of machines that become nodes: the uppermost ones of the last rack.
const NODES: usize = 4;
const SITE: &str = "site-demo";
/// The number of machines that are registered concurrently.
const AT_ONCE: usize = 64;

/// Two racks of eighteen machines each. From the bottom: a shelf, nine machines, the switches, nine
/// machines, a shelf.
pub(crate) async fn register_demo(engine: &Engine) -> Result<()> {
    for rack in 1..=RACKS {
        let env = if rack == 1 { "prod" } else { "stage" };
        let position = create_rack(engine, rack, env).await?;
        for slot in 1..=PER_RACK {
            let id = format!("r{rack}-m{slot:02}");
            let above = if slot > PER_RACK / 2 { SWITCHES } else { 0 };
            let at = (position.clone(), (1 + slot + above) as u32);
            register(engine, &id, (rack, slot), env, Some(at)).await?;
        }
        for number in 1..=SWITCHES {
            let at = (position.clone(), (1 + PER_RACK / 2 + number) as u32);
            let id = format!("sw-r{rack}-{number}");
            register_device::<Switch>(engine, &id, (rack, 100 + number), env, at).await?;
        }
        for number in 1..=SHELVES {
            let bottom = number == 1;
            let slot = if bottom { 1 } else { 1 + PER_RACK + SWITCHES + 1 };
            let at = (position.clone(), slot as u32);
            let id = format!("ps-r{rack}-{number}");
            register_device::<PowerShelf>(engine, &id, (rack, 200 + number), env, at).await?;
        }
    }
    onboard_nodes(engine).await
}

/// Creates the site and onboards some machines. Existing objects are not changed.
async fn onboard_nodes(engine: &Engine) -> Result<()> {
    let site = SiteId::trusted(SITE);
    match engine.sites().get(&site).await {
        Ok(_) | Err(StoreError::Corrupt(_)) => {}
        Err(StoreError::Refused(_)) => {
            let spec =
                SiteSpec { provider: providers::sim::Sim::NAME.into(), ..SiteSpec::default() };
            let described = SiteDescription { id: site.clone(), spec, labels: Labels::new() };
            let requester = Requester { by: "demo".into(), reason: String::new() };
            engine.sites().create(described, requester).await?;
        }
        Err(error) => return Err(error),
    }
    for slot in PER_RACK - NODES + 1..=PER_RACK {
        let desired = Onboard {
            machine: MachineId::trusted(format!("r{RACKS}-m{slot:02}")),
            site: site.clone(),
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
    let spec = RackSpec { hardware_type: "demo".into(), expected, ..RackSpec::default() };
    let described = RackDescription { id: id.clone(), labels, spec };
    engine.racks().create(described, "demo".into()).await?;
    Ok(id)
}

/// Registers a device unless it exists.
async fn register_device<D: Device>(
    engine: &Engine,
    id: &str,
    (rack, number): (usize, usize),
    env: &str,
    (position, slot): (RackId, u32),
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
        ..DeviceSpec::default()
    };
    let labels = Labels::from([("env".to_string(), env.to_string())]);
    let spec = Some(PlacedSpec { spec, rack: Some(position), slot: Some(slot) });
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
    at: Option<(RackId, u32)>,
) -> Result<()> {
    let machine_id = MachineId::trusted(id);
    match engine.machines().get(&machine_id).await {
        // An unreadable row exists too.
        Ok(_) | Err(StoreError::Corrupt(_)) => return Ok(()),
        Err(StoreError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    let labels = Labels::from([
        ("env".to_string(), env.to_string()),
        ("rack".to_string(), format!("r{rack}")),
        ("slot".to_string(), slot.to_string()),
    ]);
    let (high, low) = (rack % 256, slot % 256);
    let spec = MachineSpec {
        ssh_endpoint: format!("10.{}.{high}.{low}:22", rack / 256),
        bmc_endpoint: format!("10.{}.{high}.{low}", 128 + rack / 256),
        target_cluster_ref: "cluster-a".into(),
        mac_addresses: vec![format!("02:00:00:{:02x}:{high:02x}:{low:02x}", rack / 256)],
        provider: providers::sim::Sim::NAME.into(),
        serial: format!("SIM{rack:03}{slot:03}"),
        rack: at.as_ref().map(|(rack, _)| rack.clone()),
        slot: at.map(|(_, slot)| slot),
        ..MachineSpec::default()
    };
    let machine = DescribedMachine { id: Some(machine_id), spec: Some(spec), labels };
    engine.machines().register(machine, "demo".into()).await.map(drop)
}
