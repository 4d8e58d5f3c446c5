//! The answer of `farrier why`: its sentences, and what is added to it.

use crate::fault::{FaultCode, Incident};
use crate::health::HealthSummary;
use crate::machine::Machine;
use crate::node::Node;
use crate::run::{Failure, Run, RunPhase};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explanation {
    pub headline: String,
    pub waiting_for: String,
    /// The last message of the peer that the object waits for.
    pub last_word: String,
    pub since: Option<Timestamp>,
    pub normal: String,
    pub overdue: bool,
    pub failed: String,
    pub fault: Option<FaultCode>,
    pub next_commands: Vec<String>,
    /// The health reports, and what they prevent.
    pub health: Vec<String>,
    /// Facts that prevent nothing and that an operator should know.
    pub notes: Vec<String>,
    /// Requester of the operation in question, and the time of the request.
    pub requested_by: String,
    /// A destructive effect on the object has an unknown outcome.
    pub may_be_damaged: bool,
    /// The last operation on the object, and how it ended.
    pub last_operation: String,
    /// The last request on the object that was refused: who, what, why.
    pub refused: String,
}

impl Explanation {
    /// Every text that may name other objects.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let one = [
            &mut self.headline,
            &mut self.waiting_for,
            &mut self.last_word,
            &mut self.failed,
            &mut self.last_operation,
            &mut self.refused,
        ];
        let lists = [&mut self.next_commands, &mut self.health, &mut self.notes];
        one.into_iter().chain(lists.into_iter().flatten())
    }

    /// Adds the commands that repair the cause of a failed run to the explanation of the object
    /// that it has stopped at. The actions on the run are not among them.
    pub fn add_cause_repairs(&mut self, run: &Run, machine: Option<&Machine>, node: Option<&Node>) {
        let failure = run.progress.failure.as_ref().filter(|_| run.ended());
        let Some(Failure { fault, .. }) = failure else { return };
        let incident = Incident { fault, run: Some(run), machine, node };
        let own = incident.repairs().filter(|(repair, _)| !repair.is_generic());
        let known = std::mem::take(&mut self.next_commands);
        let own = own.map(|(_, command)| command).filter(|command| !known.contains(command));
        self.next_commands = own.collect();
        self.next_commands.extend(known);
    }

    /// Names the operation that came after one that did not succeed. It may have done what that one
    /// failed to do.
    #[must_use]
    pub fn followed_by(mut self, run: &Run, latest: &Run) -> Self {
        let unfinished = matches!(run.phase(), RunPhase::Failed | RunPhase::Canceled);
        if unfinished && latest.spec.id != run.spec.id {
            self.headline = format!("{}; {} came after it", self.headline, latest.spec.id);
            self.next_commands.insert(0, format!("farrier why {}", run.spec.target));
        }
        self
    }

    /// Adds the health reports of the object.
    #[must_use]
    pub(crate) fn with_health(mut self, id: &str, health: &HealthSummary) -> Self {
        self.health = health.messages();
        let show = format!("farrier health get {id}");
        match (self.health.first(), &health.state_changes) {
            // The alert prevents every other command that changes the object.
            (Some(message), Some(_)) => {
                if !self.headline.contains(message) {
                    self.headline = format!("{}; {message}", self.headline);
                }
                self.next_commands.insert(0, show);
            }
            (Some(_), None) => self.next_commands.push(show),
            (None, _) => {}
        }
        self
    }
}
