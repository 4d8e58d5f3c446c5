//! The scale-up fabric of a rack, as one of its switches runs it.
//!
//! A [`FabricManager`] reads and changes one switch's part of the fabric. [`next_step`] is a pure
//! function of the goal and the observation; it returns the one command to send now. The caller
//! observes again after each command, so any worker can continue at any point. State that already
//! holds is not changed.

mod nvos;

pub use nvos::Nvos;

use async_trait::async_trait;
use model::fault::Fault;

/// Whether the fabric runs on this switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    Enabled,
    Disabled,
}

/// The state of the application that manages the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// Not listed: the fabric does not run here, or the application has not started yet.
    Absent,
    Stopped,
    /// Running, but the fabric is not configured.
    Unconfigured,
    Configured,
}

/// The observed state of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub cluster: Cluster,
    pub controller: Controller,
    /// Whether other switches may reach the manager on this one.
    pub open: bool,
    /// Whether this switch is connected to the manager, wherever the manager runs.
    pub connected: bool,
    /// The state in the switch's words, for operators.
    pub said: String,
}

/// A command to a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    Enable,
    Disable,
    /// Start the application that manages the fabric.
    Start,
    /// Let other switches reach the manager.
    Open,
}

impl Tell {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enable => "switching the fabric on",
            Self::Disable => "switching the fabric off",
            Self::Start => "starting the fabric manager",
            Self::Open => "opening the fabric manager to its clients",
        }
    }
}

/// The desired state of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The fabric does not run here.
    Off,
    /// The manager runs here and can be reached.
    Manager,
    /// The switch reports a configured fabric, as its manager or as managed by another switch.
    Configured,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done,
    Tell(Tell),
    /// The switch is still changing: observe again.
    Look,
}

#[async_trait]
pub trait FabricManager: Send + Sync {
    async fn look(&self) -> Result<Seen, Fault>;
    /// Sends the command once. Success means that it was accepted, not that the state holds.
    async fn tell(&self, what: Tell) -> Result<(), Fault>;
}

/// The next step towards a goal. `FabricGoal::Configured` sends none: the manager configures it.
pub fn next(goal: Goal, seen: &Seen) -> Step {
    match (goal, seen.cluster) {
        (Goal::Off, Cluster::Disabled) => Step::Done,
        (Goal::Off, Cluster::Enabled) => Step::Tell(Tell::Disable),
        (Goal::Manager, Cluster::Disabled) => Step::Tell(Tell::Enable),
        (Goal::Manager, Cluster::Enabled) => match (seen.controller, seen.open) {
            (Controller::Absent, _) => Step::Look,
            (Controller::Stopped, _) => Step::Tell(Tell::Start),
            (Controller::Unconfigured | Controller::Configured, false) => Step::Tell(Tell::Open),
            (Controller::Unconfigured | Controller::Configured, true) => Step::Done,
        },
        (Goal::Configured, Cluster::Enabled | Cluster::Disabled) => {
            match (seen.controller, seen.connected) {
                (Controller::Configured, _) | (Controller::Absent, true) => Step::Done,
                (Controller::Absent, false) => Step::Look,
                (Controller::Stopped | Controller::Unconfigured, _) => Step::Look,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch whose manager is open is also connected to it.
    fn seen(cluster: Cluster, controller: Controller, open: bool) -> Seen {
        Seen { cluster, controller, open, connected: open, said: String::new() }
    }

    #[test]
    fn every_sight_has_its_step() {
        use Cluster::{Disabled, Enabled};
        use Controller::{Absent, Configured, Stopped, Unconfigured};
        for (goal, cluster, controller, open, expected) in [
            (Goal::Off, Disabled, Absent, false, Step::Done),
            (Goal::Off, Enabled, Configured, true, Step::Tell(Tell::Disable)),
            (Goal::Manager, Disabled, Absent, false, Step::Tell(Tell::Enable)),
            (Goal::Manager, Enabled, Absent, false, Step::Look),
            (Goal::Manager, Enabled, Stopped, true, Step::Tell(Tell::Start)),
            (Goal::Manager, Enabled, Unconfigured, false, Step::Tell(Tell::Open)),
            (Goal::Manager, Enabled, Unconfigured, true, Step::Done),
            (Goal::Manager, Enabled, Configured, true, Step::Done),
            (Goal::Configured, Enabled, Unconfigured, true, Step::Look),
            (Goal::Configured, Enabled, Configured, false, Step::Done),
            (Goal::Configured, Disabled, Absent, false, Step::Look),
            (Goal::Configured, Disabled, Absent, true, Step::Done),
            (Goal::Configured, Enabled, Stopped, true, Step::Look),
        ] {
            let found = next(goal, &seen(cluster, controller, open));
            assert_eq!(found, expected, "{goal:?} {cluster:?} {controller:?} {open}");
        }
    }

    /// A switch that obeys gets each command at most once.
    #[test]
    fn a_switch_that_listens_comes_to_its_goal() {
        for goal in [Goal::Off, Goal::Manager] {
            let mut now = seen(Cluster::Disabled, Controller::Absent, false);
            if goal == Goal::Off {
                now = seen(Cluster::Enabled, Controller::Configured, true);
            }
            let mut told = Vec::new();
            while let Step::Tell(what) = next(goal, &now) {
                assert!(!told.contains(&what), "{goal:?} was told {what:?} twice");
                told.push(what);
                match what {
                    Tell::Enable => {
                        (now.cluster, now.controller) = (Cluster::Enabled, Controller::Stopped)
                    }
                    Tell::Disable => now = seen(Cluster::Disabled, Controller::Absent, false),
                    Tell::Start => now.controller = Controller::Unconfigured,
                    Tell::Open => now.open = true,
                }
            }
            assert_eq!(next(goal, &now), Step::Done);
        }
    }
}
