//! Explanations of a machine that nothing works on: in maintenance, or meant to be in service.

use super::condition::{condition_repairs, service_repairs};
use super::disk::reimage;
use super::failed_change::explain_failed_change;
use super::{Explanation, RunContext, headline, plain};
use crate::condition::{Condition, ConditionType, POWERED_OFF};
use crate::fault::FaultCode;
use crate::machine::{Machine, MachineProblem, NetworkBoot, Phase};
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
pub(super) fn in_maintenance(
    machine: &Machine,
    run: Option<&Run>,
    context: RunContext,
) -> Explanation {
    let (id, imaging) = (&machine.id, context.imaging);
    if let Some(MachineProblem::NoSystem(known)) = machine.problem() {
        return without_system(machine, known, imaging);
    }
    let finished = run.filter(|run| is_finished_reimage(run));
    let intended = match finished {
        Some(run) => format!("{id} is in maintenance, and {}", headline(run)),
        None => format!("{id} is in maintenance, as its operator intends"),
    };
    let leave = format!("farrier exit-maintenance {id}");
    let looked_at =
        [ConditionType::BmcReachable, ConditionType::Degraded, ConditionType::Reachable];
    let Some((condition, known)) = bad_news(machine, looked_at) else {
        if let Some(failed) = machine.failed_change() {
            let told = explain_failed_change(machine, failed, context);
            let headline = format!("{id} is in maintenance, and {}", told.headline);
            let next_commands = told.next_commands.into_iter().chain([leave]).collect();
            return Explanation { headline, next_commands, ..told };
        }
        return match finished {
            Some(run) => Explanation {
                since: run.progress.finished_at,
                waiting_for: "an operator, who puts it back into service".into(),
                ..plain(intended, vec![leave])
            },
            None => plain(
                format!("{intended}; nothing is waiting"),
                vec![leave, reimage(machine, imaging)],
            ),
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
pub(super) fn out_of_use(machine: &Machine, context: RunContext) -> Explanation {
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
    let enter = format!("farrier enter-maintenance {id}");
    let install = [enter, reimage(machine, context.imaging)];
    if let Some(failed) = machine.failed_change() {
        let told = explain_failed_change(machine, failed, context);
        let next_commands = on.into_iter().chain(told.next_commands).chain(install).collect();
        let headline = format!("{state}{power}; {}", told.headline);
        return Explanation { headline, next_commands, ..told };
    }
    Explanation {
        since: provisioned.map(|known| known.last_transition),
        ..plain(format!("{state}{power}"), on.into_iter().chain(install).collect())
    }
}

/// True if the run has installed the machine, which then waits for its operator.
fn is_finished_reimage(run: &Run) -> bool {
    run.phase() == RunPhase::Succeeded && run.spec.run_type == RunType::Reimage
}

/// A machine in service or in maintenance whose system was removed. Its BMC installs the image, so
/// one that cannot be used comes first.
fn without_system(machine: &Machine, known: &Condition, imaging: Option<&Run>) -> Explanation {
    let (id, what) = (&machine.id, MachineProblem::NoSystem(known).describe());
    let (state, enter) = match machine.phase {
        Phase::Maintenance => ("in maintenance", None),
        Phase::FactoryReady | Phase::Ready => {
            ("meant to be in service", Some(format!("farrier enter-maintenance {id}")))
        }
    };
    let bmc = machine.conditions.get(ConditionType::BmcReachable).filter(|bmc| !bmc.status);
    let repairs = bmc.into_iter().flat_map(|bmc| {
        condition_repairs(machine, ConditionType::BmcReachable, bmc).collect::<Vec<_>>()
    });
    let install = enter.into_iter().chain([reimage(machine, imaging)]);
    Explanation {
        since: Some(known.last_transition),
        ..plain(format!("{id} is {state}, but {what}"), repairs.chain(install).collect())
    }
}

pub(super) fn idle(machine: &Machine, context: RunContext) -> Explanation {
    if let Some(MachineProblem::NoSystem(known)) = machine.problem() {
        return without_system(machine, known, context.imaging);
    }
    let (id, phase) = (&machine.id, machine.phase.as_str());
    let looked_at =
        [ConditionType::Reachable, ConditionType::BmcReachable, ConditionType::Degraded];
    match (bad_news(machine, looked_at), machine.health.messages().first()) {
        (None, None) => match (machine.failed_change(), &machine.network_boot) {
            // A later success of another operation does not make its result good.
            (Some(failed), _) => {
                let told = explain_failed_change(machine, failed, context);
                let headline =
                    format!("{id} is in phase {phase}, nothing active, but {}", told.headline);
                Explanation { headline, ..told }
            }
            (None, Some(NetworkBoot { since, .. })) => Explanation {
                since: Some(*since),
                ..plain(
                    format!("{id} is in phase {phase}, nothing active"),
                    vec![format!("farrier get {id}")],
                )
            },
            (None, None) => plain(
                format!("{id} is ready for work: phase {phase}, nothing active, nothing wrong"),
                vec![format!("farrier get {id}")],
            ),
        },
        (None, Some(message)) => plain(format!("{id} is ready, but {message}"), Vec::new()),
        (Some((condition, known)), _) => {
            let lost = machine.problem().filter(|problem| {
                matches!(
                    problem,
                    MachineProblem::Unreachable(_) | MachineProblem::BmcUnreachable(_)
                )
            });
            let what = lost.map_or_else(
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
