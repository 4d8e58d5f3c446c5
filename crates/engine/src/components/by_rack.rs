//! Machines and switches are upgraded by their rack: all devices of one rack in one operation.

use super::{Ask, Outcome, Update, Updated, find, step_names};
use crate::claims::unknown;
use crate::components::Components;
use crate::rack::{MaintenanceStart, Preview};
use model::component::{Course, course};
use model::id::{MachineId, RackId, SwitchId};
use model::rack::maintenance::{Asked, Scope, Trigger, Wanted};
use model::target::{TargetId, TargetKind};
use std::collections::BTreeMap;
use store::{Result, StoreError, Tx};

impl Components {
    /// Each rack decides for itself: a refusal applies to its devices only.
    pub(super) async fn update_by_racks(
        &self,
        update: &Update,
        targets: Vec<TargetId>,
    ) -> Result<Vec<Updated>> {
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let update = Update { targets, ..update.clone() };
        let mut done = Vec::new();
        let mut racks: BTreeMap<RackId, Vec<TargetId>> = BTreeMap::new();
        let courses =
            self.0.store().read(update.clone(), |update, tx| Box::pin(courses(tx, update)));
        for (target, rack, course) in courses.await? {
            let outcome = match course {
                Course::Made(run) => Outcome::Started(run),
                Course::Refused(refusal) => Outcome::Refused(refusal),
                Course::Directly(_) => Outcome::Refused(unknown(&target)),
                Course::ByRack(rack) => {
                    racks.entry(rack).or_default().push(target);
                    continue;
                }
            };
            done.push(Updated { target, rack, outcome, preview: None });
        }
        for (rack, targets) in racks {
            let (outcome, preview) = match self.delegate(&update, &rack, &targets).await {
                Ok(foreseen) => foreseen,
                Err(StoreError::Refused(refusal)) => (Outcome::Refused(refusal), None),
                Err(error) => return Err(error),
            };
            done.extend(targets.into_iter().map(|target| Updated {
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
        update: &Update,
        rack: &RackId,
        targets: &[TargetId],
    ) -> Result<(Outcome, Option<Preview>)> {
        let of = |kind: TargetKind| targets.iter().filter(move |target| target.kind == kind);
        let machines = of(TargetKind::Machine).map(|one| MachineId::trusted(one.as_str()));
        let switches = of(TargetKind::Switch).map(|one| SwitchId::trusted(one.as_str()));
        let scope = Scope {
            machines: machines.collect(),
            switches: switches.collect(),
            power_shelves: Vec::new(),
        };
        let activities = vec![Asked::FirmwareUpgrade(update.firmware.clone())];
        let start = MaintenanceStart {
            rack_id: rack.clone(),
            wanted: Wanted { scope, activities },
            trigger: Trigger::OnDemand,
            request_id: update.request_id.clone(),
            by: update.by.clone(),
            reference: update.reference.clone(),
            force: update.force.clone(),
            dry_run: update.dry_run,
        };
        let started = self.0.racks().maintain(start).await?;
        Ok(match (started.run, started.preview) {
            (Some(run), _) => (Outcome::Started(run.spec.id), None),
            (None, Some(preview)) => {
                let outcome = match preview.refusals.first() {
                    Some(refusal) => Outcome::Refused(refusal.clone()),
                    None => Outcome::Would(step_names(&preview.planned.steps)),
                };
                (outcome, Some(preview))
            }
            (None, None) => (Outcome::Would(Vec::new()), None),
        })
    }
}

/// Decides for each device how it is upgraded.
async fn courses(tx: &mut Tx, update: &Update) -> Result<Vec<(TargetId, Option<RackId>, Course)>> {
    let Update { targets, firmware, request_id, force, .. } = update;
    let ask = Ask { firmware: firmware.as_ref(), request_id, force: force.as_deref(), lock: false };
    let mut all = Vec::new();
    for target in targets {
        match find(tx, target, &ask).await {
            Ok(device) => {
                let course = course(&device);
                all.push((target.clone(), device.rack, course));
            }
            Err(StoreError::Refused(refusal)) => {
                all.push((target.clone(), None, Course::Refused(refusal)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
