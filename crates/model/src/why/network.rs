//! Adds a boot from the network that was left armed to the explanation of a machine.

use super::Explanation;
use crate::machine::view::EffectiveState;
use crate::machine::{Machine, MachineProblem, NetworkBoot};

/// A failed operation that is retried needs the boot from the network, so its repairs come first.
pub(super) fn add_network_boot(machine: &Machine, reported: &mut Explanation) {
    let Some(boot) = machine.network_boot.as_ref().filter(|_| machine.active_run.is_none()) else {
        return;
    };
    let disarm = NetworkBoot::disarm_command(&machine.id);
    match (machine.effective_state(), machine.problem()) {
        (EffectiveState::Idle, problem) => {
            reported.headline = format!("{}; {}", reported.headline, boot.describe());
            let worst = matches!(problem, Some(MachineProblem::NetworkBoot(_)));
            let place = if worst { 0 } else { reported.next_commands.len() };
            reported.next_commands.insert(place, disarm);
        }
        (EffectiveState::New | EffectiveState::Maintenance, _) => {
            reported.notes.push(boot.describe());
            reported.next_commands.push(disarm);
        }
        // The disarming would follow the failed operation, which then can no longer be resumed.
        (EffectiveState::Attention | EffectiveState::Busy | EffectiveState::Blocked, _) => {
            reported.notes.push(boot.describe());
        }
    }
}
