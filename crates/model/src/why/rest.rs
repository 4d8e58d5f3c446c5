//! Explanations of a machine that nothing works on: in maintenance, or meant to be in service.

use super::condition::{condition_repairs, service_repairs};
use super::disk::reimage;
use super::{Explanation, headline, plain};
use crate::condition::{Condition, ConditionType, POWERED_OFF};
use crate::fault::FaultCode;
use crate::machine::{Machine, MachineProblem, NetworkBoot};
use crate::plan::RunType;
use crate::run::{Run, RunPhase};

/// The first of these conditions that is bad.
fn bad_news(
    machine: &Machine,
    looked_at: [ConditionType; 3],
) -> Option<(ConditionType, &Condition)> {
    looked_at
        .into_iter()
        .filter_map(|condition| Some((condition, machine.conditions.get(condition)?)))
        .find(|(condition, known)| condition.bad_status() == Some(known.status))
}

/// A machine in maintenance may well be powered off. An unreachable BMC is shown all the same.
/// `imaging` is the last operation that was to write the disk.
pub(super) fn in_maintenance(
    machine: &Machine,
    run: Option<&Run>,
    imaging: Option<&Run>,
) -> Explanation {
    let id = &machine.id;
    let finished = run.filter(|run| is_finished_reimage(run));
    let intended = match finished {
        Some(run) => format!("{id} is in maintenance, and {}", headline(run)),
        None => format!("{id} is in maintenance, as its operator intends"),
    };
    let leave = format!("farrier exit-maintenance {id}");
    let looked_at =
        [ConditionType::BmcReachable, ConditionType::Degraded, ConditionType::Reachable];
    let Some((condition, known)) = bad_news(machine, looked_at) else {
        return match finished {
            Some(run) => Explanation {
                since: run.progress.finished_at,
                waiting_for: "an operator, who puts it back into service".into(),
                ..plain(intended, vec![leave])
            },
            None => {
                let commands = vec![leave, reimage(machine, imaging)];
                plain(format!("{intended}; nothing is waiting"), commands)
            }
        };
    };
    Explanation {
        headline: format!(
            "{intended}; {} is {}: {}",
            condition.as_str(),
            known.status,
            known.reason
        ),
        since: Some(known.last_transition),
        failed: known.reason.clone(),
        fault: FaultCode::parse(&known.reason),
        next_commands: condition_repairs(machine, condition, known).chain([leave]).collect(),
        ..Explanation::default()
    }
}

/// A machine that was never provisioned, or whose system was removed since. It may well be off.
pub(super) fn out_of_use(machine: &Machine, imaging: Option<&Run>) -> Explanation {
    let id = &machine.id;
    let provisioned = machine.conditions.get(ConditionType::Provisioned);
    let state = match provisioned {
        Some(known) => format!("{id} is out of use: it has no system any more ({})", known.reason),
        None => format!("{id} is new: registered, and never provisioned"),
    };
    let reachable = machine.conditions.get(ConditionType::Reachable).filter(|known| !known.status);
    let power = reachable.map_or_else(String::new, |known| {
        format!("; {}", MachineProblem::Unreachable(known).describe())
    });
    let off = reachable.is_some_and(|known| known.reason == POWERED_OFF);
    let on = off.then(|| format!("farrier machine power {id} on"));
    let install = [format!("farrier enter-maintenance {id}"), reimage(machine, imaging)];
    Explanation {
        since: provisioned.map(|known| known.last_transition),
        ..plain(format!("{state}{power}"), on.into_iter().chain(install).collect())
    }
}

/// True if the run has installed the machine, which then waits for its operator.
fn is_finished_reimage(run: &Run) -> bool {
    run.phase() == RunPhase::Succeeded && run.spec.run_type == RunType::Reimage
}

/// The observation that a system was removed and no other installed since. A machine that was never
/// imaged here has none: it has the system that it came with.
fn removed_system(machine: &Machine) -> Option<&Condition> {
    machine.conditions.get(ConditionType::Provisioned).filter(|known| !known.status)
}

/// `imaging` is the last operation that was to write the disk. A later success of another one does
/// not make its result good.
pub(super) fn idle(machine: &Machine, imaging: Option<&Run>) -> Explanation {
    let (id, phase) = (&machine.id, machine.phase.as_str());
    let stopped =
        imaging.filter(|run| matches!(run.phase(), RunPhase::Failed | RunPhase::Canceled));
    let looked_at =
        [ConditionType::Reachable, ConditionType::BmcReachable, ConditionType::Degraded];
    match (bad_news(machine, looked_at), machine.health.messages().first()) {
        (None, None) => match (stopped, &machine.network_boot) {
            (Some(run), _) => Explanation {
                since: run.progress.finished_at,
                ..plain(
                    format!("{id} is in phase {phase}, nothing active, but {}", headline(run)),
                    vec![format!("farrier why {}", run.spec.id), format!("farrier get {id}")],
                )
            },
            (None, Some(NetworkBoot { since, .. })) => Explanation {
                since: Some(*since),
                ..plain(
                    format!("{id} is in phase {phase}, nothing active"),
                    vec![format!("farrier get {id}")],
                )
            },
            (None, None) => match removed_system(machine) {
                Some(known) => Explanation {
                    since: Some(known.last_transition),
                    ..plain(
                        format!(
                            "{id} is in phase {phase}, nothing active, but it has no system: {}",
                            known.reason
                        ),
                        vec![format!("farrier enter-maintenance {id}"), reimage(machine, imaging)],
                    )
                },
                None => plain(
                    format!("{id} is ready for work: phase {phase}, nothing active, nothing wrong"),
                    vec![format!("farrier get {id}")],
                ),
            },
        },
        (None, Some(message)) => plain(format!("{id} is ready, but {message}"), Vec::new()),
        (Some((condition, known)), _) => {
            let what = machine.problem().map_or_else(
                || format!("{} is {}: {}", condition.as_str(), known.status, known.reason),
                MachineProblem::describe,
            );
            Explanation {
                headline: format!("{id} is meant to be in service, but {what}"),
                since: Some(known.last_transition),
                failed: known.reason.clone(),
                fault: FaultCode::parse(&known.reason),
                next_commands: service_repairs(machine, condition, known),
                ..Explanation::default()
            }
        }
    }
}
