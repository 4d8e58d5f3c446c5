//! Inspection of a simulated machine. Its inventory is invented, derived from the machine's id and
//! so always the same. Power, next boot and image are the simulated state.

use super::Sim;
use super::hardware::{Hardware, Power as SimPower, boot_source};
use crate::inspect::{Inspection, Inspector};
use crate::port::Target;
use crate::power::PowerState;
use crate::redfish::{
    Cpu, Disk, Firmware, Gpu, Health, HealthReport, Inventory, LogEntry, Memory, Nic,
};
use async_trait::async_trait;
use model::fault::Result;
use model::id::MachineId;
use model::retry::fnv1a;
use std::time::Duration;

const MODELS: [(&str, &str); 3] = [
    ("Farrier Simulations", "Anvil 1U"),
    ("Farrier Simulations", "Anvil 2U"),
    ("Farrier Simulations", "Forge GPU"),
];
const CPUS: [(&str, u64); 3] = [("Sim 8-Core", 8), ("Sim 32-Core", 32), ("Sim 64-Core", 64)];
const MODULE_MIB: u64 = 32 * 1024;
const DISK_BYTES: u64 = 1_920_383_410_176;
/// The number of GPUs of the GPU model.
const GPUS: u64 = 8;
/// The number of sensors of each machine.
const SENSORS: usize = 24;
/// The time from power on to the start of the operating system.
const POST: Duration = Duration::from_secs(20);

#[async_trait]
impl Inspector for Sim {
    async fn inspect(&self, target: &Target) -> Result<Inspection> {
        self.apply_probe_fault(&target.machine_id()).await?;
        self.with_hardware(&target.machine_id(), |hardware, _| inspection(target, hardware))
    }

    async fn event_log(&self, target: &Target, count: usize) -> Result<Vec<LogEntry>> {
        self.apply_probe_fault(&target.machine_id()).await?;
        let mut entries =
            self.with_hardware(&target.machine_id(), |hardware, _| entries(hardware))?;
        entries.truncate(count);
        Ok(entries)
    }

    async fn power_now(&self, target: &Target) -> Result<PowerState> {
        self.apply_probe_fault(&target.machine_id()).await?;
        self.with_hardware(&target.machine_id(), |hardware, _| power(hardware))
    }
}

const fn power(hardware: &Hardware) -> PowerState {
    match hardware.power {
        SimPower::On => PowerState::On,
        SimPower::Off => PowerState::Off,
    }
}

/// Picks an entry by the machine's id, always the same one.
fn pick<T: Copy, const N: usize>(machine: &MachineId, salt: u32, from: [T; N]) -> T {
    from[fnv1a(machine.as_str(), salt) as usize % N]
}

fn inspection(target: &Target, hardware: &Hardware) -> Inspection {
    let health = HealthReport {
        overall: Health::Ok,
        unhealthy: Vec::new(),
        redundancy: Vec::new(),
        components_read: SENSORS,
        skipped: Vec::new(),
    };
    Inspection {
        inventory: inventory(target),
        power: Some(power(hardware)),
        boot: Some(boot_source(hardware.netboot).to_string()),
        health: Some(health),
    }
}

fn inventory(target: &Target) -> Inventory {
    let machine = &target.machine_id();
    let (vendor, model) = pick(machine, 1, MODELS);
    let (cpu, cores) = pick(machine, 2, CPUS);
    let modules: u64 = pick(machine, 3, [4, 8, 16]);
    let gpus = if model.ends_with("GPU") { GPUS } else { 0 };
    let invented = format!("SIM{:08X}", fnv1a(machine.as_str(), 4) as u32);
    let serial = Some(target.spec.serial.clone()).filter(|serial| !serial.is_empty());
    let some = |text: &str| Some(text.to_string());
    Inventory {
        vendor: some(vendor),
        model: some(model),
        serial: serial.or(Some(invented)),
        sku: None,
        uuid: Some(format!(
            "{:016x}{:016x}",
            fnv1a(machine.as_str(), 5),
            fnv1a(machine.as_str(), 6)
        )),
        bios_version: some("1.4.2"),
        bmc_version: some("2.10"),
        cpus: (0..2)
            .map(|n| Cpu {
                id: format!("CPU{n}"),
                vendor: some(vendor),
                model: some(cpu),
                cores: Some(cores),
                threads: Some(cores * 2),
            })
            .collect(),
        memory_mib: Some(modules * MODULE_MIB),
        memory: (0..modules)
            .map(|n| Memory {
                id: format!("DIMM{n}"),
                capacity_mib: MODULE_MIB,
                kind: some("DDR5"),
                serial: None,
            })
            .collect(),
        disks: (0..pick(machine, 7, [1, 2, 4])).map(|n| disk(machine, n)).collect(),
        nics: nics(target),
        gpus: (0..gpus)
            .map(|n| Gpu {
                id: format!("GPU{n}"),
                vendor: some(vendor),
                model: some("Sim Accelerator"),
                serial: None,
            })
            .collect(),
        firmware: [("BIOS", "1.4.2"), ("BMC", "2.10")]
            .into_iter()
            .map(|(id, version)| Firmware {
                id: id.into(),
                name: some(id),
                version: version.into(),
                updateable: Some(true),
                ..Firmware::default()
            })
            .collect(),
        skipped: Vec::new(),
    }
}

fn disk(machine: &MachineId, number: u32) -> Disk {
    Disk {
        id: format!("nvme{number}"),
        model: Some("Sim NVMe".into()),
        serial: Some(format!("D{:010X}", fnv1a(machine.as_str(), 10 + number) & 0xff_ffff_ffff)),
        capacity_bytes: Some(DISK_BYTES),
        media: Some("SSD".into()),
        protocol: Some("NVMe".into()),
    }
}

/// The registered MAC addresses, or an invented one.
fn nics(target: &Target) -> Vec<Nic> {
    let [_, _, _, a, b, c, d, e] = fnv1a(target.machine_id().as_str(), 8).to_be_bytes();
    let invented = vec![format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")];
    let macs = match target.spec.mac_addresses.as_slice() {
        [] => invented.as_slice(),
        known => known,
    };
    let nic = |(n, mac): (usize, &String)| Nic {
        id: format!("eth{n}"),
        mac: mac.clone(),
        link_up: Some(true),
        speed_mbps: Some(25_000),
    };
    macs.iter().enumerate().map(nic).collect()
}

/// The event log of the last boot, newest first.
fn entries(hardware: &Hardware) -> Vec<LogEntry> {
    let boot = hardware.boot_id;
    let entry = |id: u64, before: Duration, message: String| LogEntry {
        id: id.to_string(),
        log: "SEL".into(),
        at: Some(hardware.booted_at - before),
        severity: Some("OK".into()),
        message,
    };
    vec![
        entry(boot * 2, Duration::ZERO, format!("operating system started, boot {boot}")),
        entry(boot * 2 - 1, POST, "the power was switched on".into()),
    ]
}
