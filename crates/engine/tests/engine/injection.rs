//! The faults that the crash matrix injects into a process at a crash point.

use crate::audit::RepeatedCalls;
use crate::fault_injector::{CrashPoint, StopScope};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injection {
    /// The process dies and is started again under its name.
    Restart,
    /// The process dies and a replica that already runs takes over.
    TakeOver,
    /// The process freezes past its lease and wakes while another replica works on the run.
    FreezeUntilTaken,
    /// The process freezes and wakes when another replica has ended the run.
    FreezeUntilDone,
    /// The database connection is cut. Before a commit nothing was written; after it the process
    /// does not learn that it was.
    CutConnection,
    /// An operator cancels at this point.
    Cancel,
    /// An operator cancels and the process dies.
    CancelAndRestart,
    /// An operator cancels as the process freezes; it wakes when another replica has ended the run.
    CancelAndFreeze,
    /// Another replica claims everything that the process holds, and releases it later unused.
    StealClaims,
}

impl Injection {
    pub const fn scope(self) -> StopScope {
        match self {
            Self::Restart
            | Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::FreezeUntilDone
            | Self::CancelAndFreeze
            | Self::StealClaims => StopScope::Process,
            Self::CutConnection | Self::Cancel | Self::CancelAndRestart => StopScope::Task,
        }
    }

    pub const fn needs_replica(self) -> bool {
        match self {
            Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::FreezeUntilDone
            | Self::CancelAndFreeze => true,
            Self::Restart
            | Self::CutConnection
            | Self::Cancel
            | Self::CancelAndRestart
            | Self::StealClaims => false,
        }
    }

    /// The process wakes after the script has ended.
    pub const fn wakes_at_the_end(self) -> bool {
        match self {
            Self::FreezeUntilDone | Self::CancelAndFreeze => true,
            Self::Restart
            | Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::CutConnection
            | Self::Cancel
            | Self::CancelAndRestart
            | Self::StealClaims => false,
        }
    }

    /// A process that wakes after a takeover may make the call that it was about to make.
    pub const fn repeated_calls(self) -> RepeatedCalls {
        match self {
            Self::FreezeUntilTaken | Self::FreezeUntilDone | Self::CancelAndFreeze => {
                RepeatedCalls::Allowed
            }
            Self::Restart
            | Self::TakeOver
            | Self::CutConnection
            | Self::Cancel
            | Self::CancelAndRestart
            | Self::StealClaims => RepeatedCalls::Forbidden,
        }
    }

    pub const fn cancels(self) -> bool {
        match self {
            Self::Cancel | Self::CancelAndRestart | Self::CancelAndFreeze => true,
            Self::Restart
            | Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::FreezeUntilDone
            | Self::CutConnection
            | Self::StealClaims => false,
        }
    }

    /// A connection can only be cut where there is one.
    pub const fn applies_at(self, point: &CrashPoint) -> bool {
        match (self, point) {
            (Self::CutConnection, CrashPoint::Effect(..)) => false,
            (Self::CutConnection, CrashPoint::Commit(..))
            | (
                Self::Restart
                | Self::TakeOver
                | Self::FreezeUntilTaken
                | Self::FreezeUntilDone
                | Self::Cancel
                | Self::CancelAndRestart
                | Self::CancelAndFreeze
                | Self::StealClaims,
                _,
            ) => true,
        }
    }
}
