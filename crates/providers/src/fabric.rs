//! The scale-up fabric of a rack, as one of its switches runs it.
//!
//! A [`FabricManager`] reads and changes one switch's part of the fabric. [`next_step`] is a pure
//! function of the goal and the observation; it returns the one command to send now. The caller
//! observes again after each command, so any worker can continue at any point. State that already
//! holds is not changed.

mod nvos;

pub use nvos::Nvos;

use async_trait::async_trait;
use model::fault::Result;

/// Whether the fabric runs on this switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterState {
    Enabled,
    Disabled,
}

/// The state of the application that manages the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerState {
    /// Not listed: the fabric does not run here, or the application has not started yet.
    Absent,
    Stopped,
    /// Running, but the fabric is not configured.
    Unconfigured,
    Configured,
}

/// The observed state of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricObservation {
    pub cluster: ClusterState,
    pub controller: ControllerState,
    /// Whether other switches may reach the manager on this one.
    pub manager_open: bool,
    /// Whether this switch is connected to the manager, wherever the manager runs.
    pub connected: bool,
    /// The state in the switch's words, for operators.
    pub summary: String,
}

/// A command to a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricCommand {
    Enable,
    Disable,
    /// Start the application that manages the fabric.
    StartManager,
    /// Let other switches reach the manager.
    OpenManager,
}

impl FabricCommand {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enable => "switching the fabric on",
            Self::Disable => "switching the fabric off",
            Self::StartManager => "starting the fabric manager",
            Self::OpenManager => "opening the fabric manager to its clients",
        }
    }
}

/// The desired state of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricTarget {
    /// The fabric does not run here.
    Off,
    /// The manager runs here and can be reached.
    Manager,
    /// The switch reports a configured fabric, as its manager or as managed by another switch.
    Configured,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricStep {
    Done,
    Send(FabricCommand),
    /// The switch is still changing: observe again.
    Wait,
}

#[async_trait]
pub trait FabricManager: Send + Sync {
    async fn observe(&self) -> Result<FabricObservation>;
    /// Sends the command once. Success means that it was accepted, not that the state holds.
    async fn send_command(&self, what: FabricCommand) -> Result<()>;
}

/// The next step towards a goal. `FabricGoal::Configured` sends none: the manager configures it.
pub fn next_step(goal: FabricTarget, observed: &FabricObservation) -> FabricStep {
    match (goal, observed.cluster) {
        (FabricTarget::Off, ClusterState::Disabled) => FabricStep::Done,
        (FabricTarget::Off, ClusterState::Enabled) => FabricStep::Send(FabricCommand::Disable),
        (FabricTarget::Manager, ClusterState::Disabled) => FabricStep::Send(FabricCommand::Enable),
        (FabricTarget::Manager, ClusterState::Enabled) => {
            match (observed.controller, observed.manager_open) {
                (ControllerState::Absent, _) => FabricStep::Wait,
                (ControllerState::Stopped, _) => FabricStep::Send(FabricCommand::StartManager),
                (ControllerState::Unconfigured | ControllerState::Configured, false) => {
                    FabricStep::Send(FabricCommand::OpenManager)
                }
                (ControllerState::Unconfigured | ControllerState::Configured, true) => {
                    FabricStep::Done
                }
            }
        }
        (FabricTarget::Configured, ClusterState::Enabled | ClusterState::Disabled) => {
            match (observed.controller, observed.connected) {
                (ControllerState::Configured, _) | (ControllerState::Absent, true) => {
                    FabricStep::Done
                }
                (ControllerState::Absent, false) => FabricStep::Wait,
                (ControllerState::Stopped | ControllerState::Unconfigured, _) => FabricStep::Wait,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch whose manager is open is also connected to it.
    fn observation(
        cluster: ClusterState,
        controller: ControllerState,
        open: bool,
    ) -> FabricObservation {
        FabricObservation {
            cluster,
            controller,
            manager_open: open,
            connected: open,
            summary: String::new(),
        }
    }

    #[test]
    fn every_observation_has_its_step() {
        use ClusterState::{Disabled, Enabled};
        use ControllerState::{Absent, Configured, Stopped, Unconfigured};
        for (goal, cluster, controller, open, expected) in [
            (FabricTarget::Off, Disabled, Absent, false, FabricStep::Done),
            (
                FabricTarget::Off,
                Enabled,
                Configured,
                true,
                FabricStep::Send(FabricCommand::Disable),
            ),
            (
                FabricTarget::Manager,
                Disabled,
                Absent,
                false,
                FabricStep::Send(FabricCommand::Enable),
            ),
            (FabricTarget::Manager, Enabled, Absent, false, FabricStep::Wait),
            (
                FabricTarget::Manager,
                Enabled,
                Stopped,
                true,
                FabricStep::Send(FabricCommand::StartManager),
            ),
            (
                FabricTarget::Manager,
                Enabled,
                Unconfigured,
                false,
                FabricStep::Send(FabricCommand::OpenManager),
            ),
            (FabricTarget::Manager, Enabled, Unconfigured, true, FabricStep::Done),
            (FabricTarget::Manager, Enabled, Configured, true, FabricStep::Done),
            (FabricTarget::Configured, Enabled, Unconfigured, true, FabricStep::Wait),
            (FabricTarget::Configured, Enabled, Configured, false, FabricStep::Done),
            (FabricTarget::Configured, Disabled, Absent, false, FabricStep::Wait),
            (FabricTarget::Configured, Disabled, Absent, true, FabricStep::Done),
            (FabricTarget::Configured, Enabled, Stopped, true, FabricStep::Wait),
        ] {
            let found = next_step(goal, &observation(cluster, controller, open));
            assert_eq!(found, expected, "{goal:?} {cluster:?} {controller:?} {open}");
        }
    }

    /// A switch that obeys gets each command at most once.
    #[test]
    fn a_switch_that_obeys_reaches_its_goal() {
        for goal in [FabricTarget::Off, FabricTarget::Manager] {
            let mut now = observation(ClusterState::Disabled, ControllerState::Absent, false);
            if goal == FabricTarget::Off {
                now = observation(ClusterState::Enabled, ControllerState::Configured, true);
            }
            let mut reported = Vec::new();
            while let FabricStep::Send(what) = next_step(goal, &now) {
                assert!(!reported.contains(&what), "{goal:?} was told {what:?} twice");
                reported.push(what);
                match what {
                    FabricCommand::Enable => {
                        (now.cluster, now.controller) =
                            (ClusterState::Enabled, ControllerState::Stopped)
                    }
                    FabricCommand::Disable => {
                        now = observation(ClusterState::Disabled, ControllerState::Absent, false)
                    }
                    FabricCommand::StartManager => now.controller = ControllerState::Unconfigured,
                    FabricCommand::OpenManager => now.manager_open = true,
                }
            }
            assert_eq!(next_step(goal, &now), FabricStep::Done);
        }
    }
}
