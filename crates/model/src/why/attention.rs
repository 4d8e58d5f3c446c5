//! Objects that need a person, and how urgent each is.
//!
//! One function for each kind of object ranks it from its record alone, so that a whole fleet can
//! be ranked before a few objects are explained.

use super::{Explanation, record_overdue};
use crate::condition::ConditionType;
use crate::device::Device;
use crate::fault::{EffectOutcome, FaultCode};
use crate::health::{AlertClass, Reports};
use crate::host::{Host, HostState};
use crate::lifecycle::Lifecycle;
use crate::machine::view::EffectiveState;
use crate::machine::{Machine, MachineProblem};
use crate::node::{Node, NodeState, NodeWork};
use crate::rack::{Rack, RackState};
use crate::rollout::{Rollout, RolloutStage};
use crate::run::Run;
use crate::site::{Site, SiteState};
use crate::time::Timestamp;
use std::time::Duration;

/// Worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A destructive effect has an unknown outcome.
    MayBeDamaged,
    /// An operation or a lifecycle has stopped, or none can start, until a person acts.
    Stopped,
    /// It should be in service, and is not.
    OutOfService,
    /// An operation or a state lasts longer than is normal.
    Overdue,
    /// It works, but something that it needs is lost or ends soon.
    Degraded,
}

impl Urgency {
    pub const ALL: [Self; 5] =
        [Self::MayBeDamaged, Self::Stopped, Self::OutOfService, Self::Overdue, Self::Degraded];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MayBeDamaged => "may_be_damaged",
            Self::Stopped => "stopped",
            Self::OutOfService => "out_of_service",
            Self::Overdue => "overdue",
            Self::Degraded => "degraded",
        }
    }

    /// The urgency of an explained object: the explanation has read the run that may have done
    /// damage.
    #[must_use]
    pub const fn explained(self, explanation: &Explanation) -> Self {
        match (self, explanation.may_be_damaged) {
            (_, true) => Self::MayBeDamaged,
            (Self::MayBeDamaged, false) => Self::Stopped,
            (Self::Stopped | Self::OutOfService | Self::Overdue | Self::Degraded, false) => self,
        }
    }
}

/// The place of an object in the list: the worst first, then what waits longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub urgency: Urgency,
    pub since: Timestamp,
}

impl Rank {
    pub const fn new(urgency: Urgency, since: Timestamp) -> Self {
        Self { urgency, since }
    }
}

/// None: the machine needs no person. Its operation is ranked by itself.
pub fn rank_machine(machine: &Machine) -> Option<Rank> {
    if machine.effective_state() == EffectiveState::Attention {
        let known = machine.conditions.get(ConditionType::NeedsIntervention)?;
        let urgency = match has_unknown_outcome(&known.reason) {
            true => Urgency::MayBeDamaged,
            false => Urgency::Stopped,
        };
        return Some(Rank::new(urgency, known.last_transition));
    }
    let problem = machine.problem()?;
    let urgency = match problem {
        MachineProblem::UnfinishedDisk(_) => Urgency::Stopped,
        MachineProblem::NoSystem(_) | MachineProblem::Unreachable(_) => Urgency::OutOfService,
        MachineProblem::BmcUnreachable(_)
        | MachineProblem::NetworkBoot(_)
        | MachineProblem::FailedChange(_) => Urgency::Degraded,
    };
    Some(Rank::new(urgency, machine.problem_since(problem)))
}

/// The reason of `NeedsIntervention` begins with the code of the fault.
fn has_unknown_outcome(reason: &str) -> bool {
    let code = reason.split(':').next().and_then(FaultCode::parse);
    code.is_some_and(|code| code.effect_outcome() == EffectOutcome::Unknown)
}

/// The firmware of a machine: a failed upgrade that is not tried again by itself.
pub fn rank_host(host: &Host, retry_interval: Duration) -> Option<Rank> {
    let failed = matches!(host.state, HostState::FailedFirmwareUpgrade { .. });
    let waits = failed && host.next_attempt(retry_interval).is_none();
    waits.then(|| Rank::new(Urgency::Stopped, host.head.since))
}

/// The health reports on an object: an alert that prevents changes, unless its source suppresses
/// it.
pub fn rank_alerts(reports: &Reports) -> Option<Rank> {
    let alerts = reports.values().flat_map(|report| report.alerts.values());
    let prevents = alerts.filter(|alert| {
        alert.is(AlertClass::PreventStateChanges) && !alert.is(AlertClass::SuppressExternalAlerting)
    });
    prevents.map(|alert| alert.since).min().map(|since| Rank::new(Urgency::Stopped, since))
}

pub fn rank_rack(rack: &Rack, now: Timestamp) -> Option<Rank> {
    match &rack.state {
        RackState::Error { .. } => Some(Rank::new(Urgency::Stopped, rack.head.since)),
        RackState::Created
        | RackState::Discovering
        | RackState::Maintenance { .. }
        | RackState::Validating
        | RackState::Ready
        | RackState::Deleting => rank_overdue(rack, now),
    }
}

pub fn rank_device<D: Device>(device: &D, now: Timestamp) -> Option<Rank> {
    let head = device.head();
    if device.failure().is_some() && head.active_run.is_none() {
        return Some(Rank::new(Urgency::Stopped, head.since));
    }
    let lost = device.observed().filter(|observed| device.is_polled() && !observed.reachable);
    match lost {
        Some(observed) => Some(Rank::new(Urgency::OutOfService, observed.at)),
        None => rank_overdue(device, now),
    }
}

/// A node whose onboarding stopped waits for a person, also when a later success on its machine has
/// cleared `NeedsIntervention`.
pub fn rank_node(node: &Node, work: NodeWork, now: Timestamp) -> Option<Rank> {
    let since = node.head.since;
    match (node.state, work) {
        (_, NodeWork::AgentLost(since)) => Some(Rank::new(Urgency::Overdue, since)),
        (NodeState::Quarantined | NodeState::Offline, NodeWork::AtWork) => None,
        (NodeState::Quarantined, NodeWork::Idle | NodeWork::Stopped)
        | (NodeState::BootstrapIssued | NodeState::Enrolling, NodeWork::Stopped) => {
            Some(Rank::new(Urgency::Stopped, since))
        }
        (NodeState::Offline, NodeWork::Idle | NodeWork::Stopped) => {
            Some(Rank::new(Urgency::OutOfService, since))
        }
        (NodeState::BootstrapIssued | NodeState::Enrolling, NodeWork::AtWork | NodeWork::Idle)
        | (
            NodeState::Active
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted,
            _,
        ) => rank_overdue(node, now),
    }
}

pub fn rank_site(site: &Site) -> Option<Rank> {
    match site.state() {
        SiteState::Unreachable | SiteState::CutOff => {
            Some(Rank::new(Urgency::OutOfService, site.head.since))
        }
        SiteState::New | SiteState::Connected => None,
    }
}

/// A rollout that a person has to let go on.
pub fn rank_rollout(rollout: &Rollout) -> Option<Rank> {
    let ended = rollout.stage.has_ended() || rollout.stage == RolloutStage::Aborting;
    let since = match (&rollout.pause, rollout.stage) {
        (Some(pause), _) => Some(pause.since),
        (None, RolloutStage::AwaitingApproval) => Some(rollout.head.since),
        (
            None,
            RolloutStage::Waiting
            | RolloutStage::Running
            | RolloutStage::Soaking { .. }
            | RolloutStage::Aborting
            | RolloutStage::Done
            | RolloutStage::Aborted,
        ) => None,
    };
    since.filter(|_| !ended).map(|since| Rank::new(Urgency::Stopped, since))
}

/// An operation that is known to be overdue.
pub fn rank_run(run: &Run) -> Rank {
    let step = run.progress.current().and_then(|step| step.waiting_since.or(step.started_at));
    let since = step.or(run.progress.started_at).unwrap_or(run.spec.created_at);
    Rank::new(Urgency::Overdue, since)
}

fn rank_overdue<R: Lifecycle>(record: &R, now: Timestamp) -> Option<Rank> {
    record_overdue(record, now).then(|| Rank::new(Urgency::Overdue, record.head().since))
}

impl Explanation {
    /// The one command to type: the first that does not only show a log. A cancel is no repair of
    /// an operation that is at work.
    pub fn next_command(&self) -> Option<&str> {
        let first = self.next_commands.iter().find(|command| Self::is_next_command(command));
        first.or(self.next_commands.first()).map(String::as_str)
    }

    /// True for a command that may be the one to type.
    pub fn is_next_command(command: &str) -> bool {
        !["farrier logs ", "farrier cancel "].iter().any(|other| command.starts_with(other))
    }
}
