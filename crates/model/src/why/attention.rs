//! What needs a person, and how urgent it is.

use super::Explanation;

/// Worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A destructive effect has an unknown outcome.
    MayBeDamaged,
    /// An operation or a lifecycle has stopped and waits for a person.
    Stopped,
    /// It should be in service, and is not.
    OutOfService,
    /// An operation waits longer than is normal.
    Overdue,
}

impl Urgency {
    pub const ALL: [Self; 4] =
        [Self::MayBeDamaged, Self::Stopped, Self::OutOfService, Self::Overdue];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MayBeDamaged => "may_be_damaged",
            Self::Stopped => "stopped",
            Self::OutOfService => "out_of_service",
            Self::Overdue => "overdue",
        }
    }
}

impl Explanation {
    /// The one command to type: the first that does not only show a log.
    pub fn next_command(&self) -> Option<&str> {
        let acts = |command: &&String| !command.starts_with("farrier logs ");
        let first = self.next_commands.iter().find(acts).or(self.next_commands.first());
        first.map(String::as_str)
    }
}
