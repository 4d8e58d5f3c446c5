//! The scale-up fabric of a rack, as one of its switches runs it.
//!
//! A [`FabricManager`] is a switch that can be asked how its part of the fabric is and be told to change it. What a change takes is
//! decided by [`next`], a pure function from what is wanted and what the switch shows to the one thing to tell it now; whoever
//! carries it out looks again after each, so it may be taken up by anybody at any point. What holds already is
//! left alone.

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

/// How the application that manages the fabric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// It is not shown: the fabric does not run here, or it has not come up yet.
    Absent,
    Stopped,
    /// It runs, and has not configured the fabric.
    Unconfigured,
    Configured,
}

/// What a switch shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub cluster: Cluster,
    pub controller: Controller,
    /// Whether others may reach the manager here.
    pub open: bool,
    /// Whether this switch has its connection to the manager, wherever that runs.
    pub connected: bool,
    /// What the switch says about it, for people.
    pub said: String,
}

/// What a switch may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    Enable,
    Disable,
    /// Start the application that manages the fabric.
    Start,
    /// Let others reach the manager.
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

/// What is wanted of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The fabric does not run here.
    Off,
    /// The manager runs here, and can be reached.
    Manager,
    /// The switch says that the fabric is configured: as the one that manages it, or as one that is managed from elsewhere.
    Configured,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done,
    Tell(Tell),
    /// It takes its time.
    Look,
}

#[async_trait]
pub trait FabricManager: Send + Sync {
    async fn look(&self) -> Result<Seen, Fault>;
    /// Tells it once. That it was taken does not mean that it holds.
    async fn tell(&self, what: Tell) -> Result<(), Fault>;
}

/// The next step towards a goal. A switch that is to be configured is not told anything: the manager does that.
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

    /// One whose manager is open is connected to it, too.
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

    /// A switch that does what it is told is told each thing at most once.
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
