//! The permissions that a run needs.

use super::permission::{Permission, PermissionSet};
use crate::effect::Effect;
use crate::plan::RunStep;
use crate::run::RunSpec;
use crate::target::TargetKind;

impl RunSpec {
    /// The permissions of all its steps. A run on a rack or a device concerns other machines too,
    /// so it needs `power`, and `firmware` if it installs some.
    pub fn permissions(&self) -> PermissionSet {
        let steps = of_steps(&self.steps);
        match self.target.kind {
            TargetKind::Machine if steps == PermissionSet::EMPTY => Permission::Operate.into(),
            TargetKind::Machine => steps,
            TargetKind::Rack | TargetKind::Switch | TargetKind::PowerShelf => {
                let power = PermissionSet::from(Permission::Power);
                match steps.contains(Permission::Firmware) {
                    true => power.union(Permission::Firmware.into()),
                    false => power,
                }
            }
        }
    }
}

fn of_steps(steps: &[RunStep]) -> PermissionSet {
    steps.iter().fold(PermissionSet::EMPTY, |all, step| all.union(of_effect(&step.effect)))
}

fn of_effect(effect: &Effect) -> PermissionSet {
    let own = PermissionSet::from(effect.facts().permission);
    match effect {
        Effect::ChildRuns { group } => {
            group.child_runs.iter().fold(own, |all, child| all.union(of_steps(&child.steps)))
        }
        Effect::Ssh { .. }
        | Effect::Reboot { .. }
        | Effect::Netboot { .. }
        | Effect::Repave { .. }
        | Effect::Join { .. }
        | Effect::Leave { .. }
        | Effect::Verify { .. }
        | Effect::Net { .. }
        | Effect::Rma { .. }
        | Effect::Drain { .. }
        | Effect::Uncordon { .. }
        | Effect::Power { .. }
        | Effect::Device { .. }
        | Effect::Stage { .. } => own,
    }
}
