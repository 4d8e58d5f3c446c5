//! The simulated datacenter: machines that are registered at start.

use engine::{Described, Engine};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use model::id::MachineId;
use model::machine::{Labels, MachineSpec};
use store::{Result, StoreError};

pub(crate) const RACKS: usize = 2;
pub(crate) const PER_RACK: usize = 18;
/// How many machines are registered at once.
const AT_ONCE: usize = 64;

/// Two racks of eighteen.
pub(crate) async fn register_demo(engine: &Engine) -> Result<()> {
    for rack in 1..=RACKS {
        for slot in 1..=PER_RACK {
            let id = format!("r{rack}-m{slot:02}");
            let env = if rack == 1 { "prod" } else { "stage" };
            register(engine, &id, rack, slot, env).await?;
        }
    }
    Ok(())
}

/// `count` machines, forty to a rack.
pub(crate) async fn register_fleet(engine: &Engine, count: usize) -> Result<()> {
    let each = stream::iter(0..count).map(|index| async move {
        let (rack, slot) = (index / 40 + 1, index % 40 + 1);
        register(engine, &format!("sim-{:05}", index + 1), rack, slot, "sim").await
    });
    // Many at once share their commits.
    each.buffer_unordered(AT_ONCE).try_collect().await
}

/// Registers a machine that is not there yet; one that is keeps what was made of it.
async fn register(engine: &Engine, id: &str, rack: usize, slot: usize, env: &str) -> Result<()> {
    let machine_id = MachineId::trusted(id);
    match engine.machine(&machine_id).await {
        Ok(_) => return Ok(()),
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
        ..MachineSpec::default()
    };
    let machine = Described { id: Some(machine_id), spec: Some(spec), labels };
    engine.register(machine, "demo".into()).await.map(drop)
}
