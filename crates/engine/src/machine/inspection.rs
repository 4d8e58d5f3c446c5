//! Inspections of machines, and the summary that each leaves behind.

use super::Machines;
use model::id::MachineId;
use model::machine::hardware::{HardwareSummary, PartSummary, RecordedHardware};
use providers::inspect::Inspection;
use std::collections::BTreeMap;
use store::{Result, Tx};

impl Machines {
    /// The hardware that the last inspections of these machines found.
    pub async fn hardware(
        &self,
        ids: Vec<MachineId>,
    ) -> Result<BTreeMap<MachineId, RecordedHardware>> {
        let found = self.0.store().scan_one(ids, |ids, tx| Box::pin(load_hardware(tx, ids)));
        found.await
    }

    /// Records the summary of an inspection. A failure is logged and does not fail the inspection.
    pub(super) async fn record_inspection(&self, id: &MachineId, inspection: &Inspection) {
        let summary = summarize(inspection).bounded();
        let recorded = RecordedHardware { summary, inspected_at: self.0.now() };
        let input = (id.clone(), recorded);
        let written =
            self.0.store().retry_write("record_inspection", input, |(id, recorded), tx| {
                Box::pin(record(tx, id, recorded))
            });
        if let Err(error) = written.await {
            tracing::warn!(machine = %id, %error, "the inspection was not recorded");
        }
    }
}

async fn load_hardware(
    tx: &mut Tx,
    ids: &[MachineId],
) -> Result<BTreeMap<MachineId, RecordedHardware>> {
    let ids: Vec<&str> = ids.iter().map(MachineId::as_str).collect();
    tx.hardware_of(&ids).await
}

/// Has no effect on a machine that was deleted during its inspection.
async fn record(tx: &mut Tx, id: &MachineId, recorded: &RecordedHardware) -> Result<()> {
    match tx.machine(id).await? {
        Some(_) => tx.record_hardware(id, recorded),
        None => Ok(()),
    }
}

fn summarize(inspection: &Inspection) -> HardwareSummary {
    let parts = &inspection.inventory;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let capacity = parts.disks.iter().filter_map(|disk| disk.capacity_bytes);
    HardwareSummary {
        vendor: text(&parts.vendor),
        model: text(&parts.model),
        serial: text(&parts.serial),
        sku: text(&parts.sku),
        bios_version: text(&parts.bios_version),
        bmc_version: text(&parts.bmc_version),
        cpus: PartSummary::of(parts.cpus.iter().map(|one| one.model.as_deref().unwrap_or(""))),
        memory_mib: parts.memory_mib.unwrap_or_default(),
        gpus: PartSummary::of(parts.gpus.iter().map(|one| one.model.as_deref().unwrap_or(""))),
        disks: PartSummary::of(parts.disks.iter().map(|one| one.model.as_deref().unwrap_or(""))),
        disk_bytes: capacity.fold(0, u64::saturating_add),
    }
}
