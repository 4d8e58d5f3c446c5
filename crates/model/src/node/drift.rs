//! Drift: what the reconciler does when MAAS reports an unexpected state of a node's machine.
//!
//! The reconciler may change the state of the work on a node, and quarantine a node in service; it
//! sets no other state. It acts only after `CONFIRMATIONS` consecutive passes. When many nodes
//! drift at once, MAAS or the connection to it is at fault, not the nodes.

use super::heartbeat::MassOutage;
use super::{
    MaasObservation, MaasState, Node, NodeStage, NodeState, Quarantine, is_consistent,
    is_expected_maas_state,
};
use crate::id::RunId;
use crate::plan::RunType;
use crate::run::{Run, Workflow};

/// The number of consecutive passes that must agree before the reconciler acts.
pub const CONFIRMATIONS: u32 = 2;

/// The reconciler's action on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriftAction {
    /// The state is as expected, or an operation takes care of it.
    Nothing,
    /// Store the number of consecutive passes.
    Count(u32),
    Quarantine(String),
    /// It was quarantined for drift, and is proven healthy again.
    Heal,
    /// The goal of the failed stage has been reached: the run may adopt the observed state.
    Adopt(RunId),
    /// The run cannot continue from the observed state.
    MarkManual(RunId, String),
}

/// A node as a pass observes it.
#[derive(Debug, Clone)]
pub struct DriftCase<'a> {
    pub node: &'a Node,
    pub observed: &'a MaasObservation,
    /// Its newest operation.
    pub run: Option<&'a Run>,
    /// It sends heartbeats and reports that it is healthy.
    pub healthy: bool,
    /// The state was first seen only a moment ago, by another replica or before a restart. Seeing
    /// it again so soon is no confirmation.
    pub first_seen_recently: bool,
}

impl DriftCase<'_> {
    /// True if a node is in service although MAAS reports that it cannot be. An unknown MAAS state
    /// is not drift.
    pub fn drifts(&self) -> bool {
        let (node, observed) = (self.node, self.observed.state);
        let wrong = observed != MaasState::Unknown && !is_expected_maas_state(node.state, observed);
        node.state.in_service() && !self.at_work() && wrong
    }

    fn at_work(&self) -> bool {
        self.run.is_some_and(|run| !run.ended())
    }

    /// `in_outage`: a mass outage, so no single node is to blame.
    pub fn decide(&self, in_outage: bool) -> DriftAction {
        let node = self.node;
        match node.state {
            _ if self.at_work() => DriftAction::Nothing,
            NodeState::Active | NodeState::Offline if !self.drifts() => reset_passes(node),
            NodeState::Active | NodeState::Offline if in_outage => DriftAction::Nothing,
            NodeState::Active | NodeState::Offline => {
                self.confirmed(|| DriftAction::Quarantine(self.describe()))
            }
            NodeState::Quarantined if node.quarantine == Some(Quarantine::Drift) => {
                let well = self.observed.state == MaasState::Deployed && self.healthy;
                match well && self.run.is_none_or(lets_serve) {
                    true => self.confirmed(|| DriftAction::Heal),
                    false => reset_passes(node),
                }
            }
            NodeState::Enrolling => {
                match self.run.map_or(DriftAction::Nothing, |run| self.workflow(run)) {
                    DriftAction::Nothing => reset_passes(node),
                    _ if in_outage => DriftAction::Nothing,
                    act @ (DriftAction::Count(_)
                    | DriftAction::Quarantine(_)
                    | DriftAction::Heal
                    | DriftAction::Adopt(_)
                    | DriftAction::MarkManual(..)) => self.confirmed(|| act),
                }
            }
            NodeState::BootstrapIssued
            | NodeState::Quarantined
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted => DriftAction::Nothing,
        }
    }

    fn confirmed(&self, act: impl FnOnce() -> DriftAction) -> DriftAction {
        let passes = self.node.drift_passes + 1;
        match passes >= CONFIRMATIONS {
            false => DriftAction::Count(passes),
            true if self.first_seen_recently => DriftAction::Nothing,
            true => act(),
        }
    }

    fn describe(&self) -> String {
        let MaasObservation { state, message: text, .. } = self.observed;
        if *state == MaasState::Absent {
            return "MAAS has no such machine any more".into();
        }
        let because = if text.is_empty() { String::new() } else { format!(" ({text})") };
        format!("MAAS has its machine as {state}{because}, not as Deployed")
    }

    /// A failed onboarding whose machine has progressed without Farrier, or is gone from MAAS.
    fn workflow(&self, run: &Run) -> DriftAction {
        let id = &run.spec.id;
        let failed = run.progress.workflow == Workflow::FailedRetryable;
        if run.spec.run_type != RunType::Onboard || !failed {
            return DriftAction::Nothing;
        }
        let state = self.observed.state;
        if state == MaasState::Absent && !self.node.system_id.is_empty() {
            return DriftAction::MarkManual(id.clone(), "MAAS has no such machine any more".into());
        }
        let stage =
            run.progress.failure.as_ref().and_then(|failure| NodeStage::parse(&failure.step));
        let deployed = state == MaasState::Deployed;
        let ready = deployed || state == MaasState::Ready;
        if (stage == Some(NodeStage::WaitForReady) && ready)
            || (stage == Some(NodeStage::WaitForDeployed) && deployed)
        {
            return DriftAction::Adopt(id.clone());
        }
        DriftAction::Nothing
    }
}

/// True if the newest operation lets the node serve: one that stopped for an operator in the middle
/// of its work does not.
pub fn lets_serve(run: &Run) -> bool {
    is_consistent(NodeState::Active, run)
}

fn reset_passes(node: &Node) -> DriftAction {
    if node.drift_passes == 0 { DriftAction::Nothing } else { DriftAction::Count(0) }
}

/// Detects a mass outage: too many nodes drift at once.
pub fn detect_mass_outage(
    cases: &[DriftCase<'_>],
    limits: &super::heartbeat::HeartbeatLimits,
) -> Option<MassOutage> {
    let serving = cases.iter().filter(|case| case.node.state.in_service()).count();
    let drifting = cases.iter().filter(|case| case.drifts()).count();
    // A MAAS that knows none of them is a different one or has lost its database, even if they are
    // few.
    let unknown = |case: &DriftCase<'_>| case.observed.state == MaasState::Absent;
    match cases.len() > 1 && drifting > 0 && cases.iter().all(unknown) {
        true => Some(MassOutage { count: drifting, of: serving }),
        false => limits.mass_outage(drifting, serving),
    }
}
