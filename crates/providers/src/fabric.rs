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

/// The state of the fabric on one switch.
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
    /// True if other switches may reach the manager on this one.
    pub manager_open: bool,
    /// True if this switch is connected to the manager, wherever the manager runs.
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
