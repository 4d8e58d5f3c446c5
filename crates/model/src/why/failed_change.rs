//! Explains a machine whose last change of a kind failed, and on which another operation has
//! succeeded since.

use super::disk::reimage;
use super::{Explanation, RunContext, headline, plain, possible_damage, repairs};
use crate::id::RunId;
use crate::machine::{ChangeKind, FailedChange, Machine, Phase};
use crate::run::Run;

/// The headline is what failed: the caller says in which state the machine is. A later operation
/// has ended the repairs that continue the failed one, so a rerun is offered too.
pub(super) fn explain_failed_change(
    machine: &Machine,
    failed: &FailedChange,
    context: RunContext,
) -> Explanation {
    let id = &machine.id;
    let known = [context.failed_change, context.imaging].into_iter().flatten();
    let run = known.into_iter().find(|run| run.spec.id == failed.run);
    let what = run.map_or_else(|| failed.describe(), headline);
    let enters = failed.needs_maintenance() && machine.phase != Phase::Maintenance;
    let enter = enters.then(|| format!("farrier enter-maintenance {id}"));
    let repair = match (failed.kind, run) {
        (ChangeKind::Imaging, _) => vec![reimage(machine, context.imaging)],
        (
            ChangeKind::Upgrade | ChangeKind::Network | ChangeKind::Firmware | ChangeKind::Power,
            Some(run),
        ) => repair_again(run, context),
        (
            ChangeKind::Upgrade | ChangeKind::Network | ChangeKind::Firmware | ChangeKind::Power,
            None,
        ) => Vec::new(),
    };
    let decide = [
        format!("farrier why {}", failed.run),
        format!("farrier admin clear-needs-intervention {id} --reason …"),
    ];
    let next_commands = enter.into_iter().chain(repair).chain(decide).collect();
    Explanation { since: Some(failed.since), ..plain(what, next_commands) }
}

/// The repairs of the fault. An effect that may have happened is not repeated on hope.
fn repair_again(run: &Run, context: RunContext) -> Vec<String> {
    let again = Some(run.command("rerun")).filter(|_| possible_damage(run).is_none());
    repairs(run, context).into_iter().map(|(_, command)| command).chain(again).collect()
}

/// Adds the failed changes that the explanation does not tell of. The one that the machine is shown
/// with stands beside the other problem in the headline. Of the others, the note about the last
/// operation on the disk tells of a failed image.
pub(super) fn add_failed_changes(
    machine: &Machine,
    explained: Option<&Run>,
    context: RunContext,
    reported: &mut Explanation,
) {
    let in_headline =
        |reported: &Explanation, run: &RunId| reported.headline.contains(run.as_str());
    if let Some(shown) = machine.failed_change().filter(|one| !in_headline(reported, &one.run)) {
        let told = explain_failed_change(machine, shown, context);
        reported.headline = format!("{}; {}", reported.headline, told.headline);
        let repairs = told.next_commands.into_iter();
        let new: Vec<String> =
            repairs.filter(|command| !reported.next_commands.contains(command)).collect();
        reported.next_commands.extend(new);
    }
    let told = |failed: &FailedChange| {
        failed.kind == ChangeKind::Imaging
            || in_headline(reported, &failed.run)
            || explained.is_some_and(|run| run.spec.id == failed.run)
    };
    let untold = machine.failed_changes.iter().filter(|failed| !told(failed));
    let untold: Vec<String> = untold.map(FailedChange::describe).collect();
    reported.notes.extend(untold);
}
