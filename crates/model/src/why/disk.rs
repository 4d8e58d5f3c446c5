//! Explanations about the disk of a machine: a write that did not finish, and a system that Farrier
//! did not install.

use super::Explanation;
use crate::condition::ConditionType;
use crate::machine::view::EffectiveState;
use crate::machine::{DiskWrite, Machine, MachineProblem, Phase};

/// Explains a machine whose last disk write did not finish, and that nothing works on.
pub(super) fn half_written(machine: &Machine, write: &DiskWrite) -> Explanation {
    let (id, phase) = (&machine.id, machine.phase.as_str());
    let repair = match machine.phase {
        Phase::Maintenance => {
            vec![format!("farrier operation rerun {}", write.key.run()), reimage(machine)]
        }
        Phase::FactoryReady | Phase::Ready => {
            vec![format!("farrier enter-maintenance {id}"), reimage(machine)]
        }
    };
    let known = machine.conditions.get(ConditionType::Provisioned);
    Explanation {
        headline: format!("{id} is in phase {phase}, and {}", describe(write)),
        since: known.map(|known| known.last_transition),
        next_commands: repair.into_iter().chain([format!("farrier get {id}")]).collect(),
        ..Explanation::default()
    }
}

/// The command that installs the server's default image.
pub(super) fn reimage(machine: &Machine) -> String {
    format!("farrier reimage {}", machine.id)
}

/// A fact about the disk that the headline does not have.
pub(super) fn disk_note(machine: &Machine) -> Option<String> {
    match (machine.effective_state(), &machine.open_disk_write) {
        (EffectiveState::Attention | EffectiveState::Blocked, Some(write)) => Some(describe(write)),
        (EffectiveState::Idle | EffectiveState::Maintenance, None)
            if machine.conditions.get(ConditionType::Provisioned).is_none() =>
        {
            Some("no image was installed on it here: it has the system that it came with".into())
        }
        (
            EffectiveState::New
            | EffectiveState::Idle
            | EffectiveState::Busy
            | EffectiveState::Maintenance
            | EffectiveState::Attention
            | EffectiveState::Blocked,
            _,
        ) => None,
    }
}

fn describe(write: &DiskWrite) -> String {
    MachineProblem::UnfinishedDisk(write).describe()
}
