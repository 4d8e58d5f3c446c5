//! Machines and switches are upgraded by their rack: all devices of one rack in one operation.

use super::{DeviceQuery, FirmwareUpdate, FirmwareUpdateResult, UpdateOutcome, find};
use crate::component::Components;
use crate::holds::unknown;
use crate::rack::{MaintenancePreview, MaintenanceStart};
use model::component::{UpgradePath, choose_upgrade_path};
use model::gate::answer;
use model::id::{MachineId, RackId, SwitchId};
use model::rack::maintenance::{
    MaintenanceScope, MaintenanceTrigger, RackMaintenanceRequest, RequestedActivity,
};
use model::target::{TargetId, TargetKind};
use std::collections::BTreeMap;
use store::{Result, StoreError, Tx};

impl Components {
    /// Each rack decides for itself: a refusal applies to its devices only.
    pub(super) async fn update_by_racks(
        &self,
        update: &FirmwareUpdate,
        targets: Vec<TargetId>,
    ) -> Result<Vec<FirmwareUpdateResult>> {
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let update = FirmwareUpdate { targets, ..update.clone() };
        let mut done = Vec::new();
        let mut racks: BTreeMap<RackId, Vec<TargetId>> = BTreeMap::new();
        let courses =
            self.0.store().read(update.clone(), |update, tx| Box::pin(decide_upgrades(tx, update)));
        for (target, rack, plan) in courses.await? {
            let outcome = match plan {
                UpgradePath::AlreadyStarted(run) => UpdateOutcome::Started(run),
                UpgradePath::Refused(refusal) => UpdateOutcome::Refused(refusal),
                UpgradePath::Direct(_) => UpdateOutcome::Refused(unknown(&target)),
                UpgradePath::ByRack(rack) => {
                    racks.entry(rack).or_default().push(target);
                    continue;
                }
            };
            done.push(FirmwareUpdateResult { target, rack, outcome, preview: None });
        }
        for (rack, targets) in racks {
            let (outcome, preview) = match self.delegate(&update, &rack, &targets).await {
                Ok(foreseen) => foreseen,
                Err(StoreError::Refused(refusal)) => (UpdateOutcome::Refused(refusal), None),
                Err(error) => return Err(error),
            };
            done.extend(targets.into_iter().map(|target| FirmwareUpdateResult {
                target,
                rack: Some(rack.clone()),
                outcome: outcome.clone(),
                preview: preview.clone(),
            }));
        }
        Ok(done)
    }

    async fn delegate(
        &self,
        update: &FirmwareUpdate,
        rack: &RackId,
        targets: &[TargetId],
    ) -> Result<(UpdateOutcome, Option<MaintenancePreview>)> {
        let of = |kind: TargetKind| targets.iter().filter(move |target| target.kind == kind);
        let machines = of(TargetKind::Machine).map(|one| MachineId::trusted(one.as_str()));
        let switches = of(TargetKind::Switch).map(|one| SwitchId::trusted(one.as_str()));
        let scope = MaintenanceScope {
            machines: machines.collect(),
            switches: switches.collect(),
            power_shelves: Vec::new(),
        };
        let activities = vec![RequestedActivity::FirmwareUpgrade(update.firmware.clone())];
        let start = MaintenanceStart {
            rack_id: rack.clone(),
            request: RackMaintenanceRequest { scope, activities },
            trigger: MaintenanceTrigger::OnDemand,
            request_id: update.request_id.clone(),
            by: update.by.clone(),
            reference: update.reference.clone(),
            overrides: update.overrides.clone(),
            dry_run: update.dry_run,
        };
        let started = self.0.racks().maintain(start).await?;
        Ok(match (started.run, started.preview) {
            (Some(run), _) => (UpdateOutcome::Started(run.spec.id), None),
            (None, Some(preview)) => {
                let outcome = match answer(&preview.refusals) {
                    Some(refusal) => UpdateOutcome::Refused(refusal),
                    None => UpdateOutcome::Planned(preview.steps.clone()),
                };
                (outcome, Some(preview))
            }
            (None, None) => (UpdateOutcome::Planned(Vec::new()), None),
        })
    }
}

/// Decides for each device how it is upgraded.
async fn decide_upgrades(
    tx: &mut Tx,
    update: &FirmwareUpdate,
) -> Result<Vec<(TargetId, Option<RackId>, UpgradePath)>> {
    let FirmwareUpdate { targets, firmware, request_id, overrides, .. } = update;
    let request = DeviceQuery { firmware: firmware.as_ref(), request_id, overrides, lock: false };
    let mut all = Vec::new();
    for target in targets {
        match find(tx, target, &request).await {
            Ok(device) => {
                let plan = choose_upgrade_path(&device);
                all.push((target.clone(), device.rack, plan));
            }
            Err(StoreError::Refused(refusal)) => {
                all.push((target.clone(), None, UpgradePath::Refused(refusal)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
