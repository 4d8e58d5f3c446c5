//! Explanations about the disk of a machine: a write that did not finish, and a system that Farrier
//! did not install.

use super::Explanation;
use crate::condition::ConditionType;
use crate::id::MachineId;
use crate::machine::view::EffectiveState;
use crate::machine::{DiskWrite, Machine, MachineProblem, Phase};
use crate::run::{Run, RunPhase};

/// Every command that writes the disk begins with it.
pub(super) const REIMAGE: &str = "farrier reimage ";

/// Explains a machine whose last disk write did not finish, and that no operation holds.
pub(super) fn half_written(
    machine: &Machine,
    write: &DiskWrite,
    imaging: Option<&Run>,
) -> Explanation {
    let (id, phase) = (&machine.id, machine.phase.as_str());
    let repair = match machine.phase {
        Phase::Maintenance => {
            vec![format!("farrier operation rerun {}", write.key.run()), reimage(machine, imaging)]
        }
        Phase::FactoryReady | Phase::Ready => {
            vec![format!("farrier enter-maintenance {id}"), reimage(machine, imaging)]
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

/// The command that installs an image: that of the last operation on the disk if it did not
/// succeed, otherwise the server's default.
pub(super) fn reimage(machine: &Machine, imaging: Option<&Run>) -> String {
    let stopped =
        imaging.filter(|run| matches!(run.phase(), RunPhase::Failed | RunPhase::Canceled));
    install_command(&machine.id, stopped.and_then(image_of))
}

/// The command that installs an image. None: the server's default.
pub fn install_command(machine: &MachineId, image: Option<&str>) -> String {
    let image = image.map_or_else(String::new, |it| format!(" --image {it}"));
    format!("{REIMAGE}{machine}{image}")
}

/// The image that a run was to install.
fn image_of(run: &Run) -> Option<&str> {
    run.spec.steps.iter().find_map(|step| step.effect.image())
}

/// The unfinished disk of a machine that needs attention comes before the operation that left it.
/// Empty: its last write finished.
pub(super) fn disk_cause(machine: &Machine) -> String {
    machine.open_disk_write.as_ref().map_or_else(String::new, |it| format!("{}; ", describe(it)))
}

/// A fact about the disk that the headline does not have.
pub(super) fn disk_note(machine: &Machine) -> Option<String> {
    match (machine.effective_state(), &machine.open_disk_write) {
        (EffectiveState::Blocked, Some(write)) => Some(describe(write)),
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
