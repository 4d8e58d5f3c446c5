//! Explains the state of a node.

use super::{Node, NodeState, Quarantine, is_expected_maas_state};
use crate::effect::Effect;
use crate::lifecycle::Lifecycle;
use crate::run::{Run, Workflow};
use crate::time::{Timestamp, format_duration};
use crate::why::{Explanation, PeerContacts, RunContext, agent_words, explain_run, record_overdue};

impl Node {
    /// Explains what the node waits for in its state.
    pub(super) fn rests(&self) -> String {
        match self.state {
            NodeState::BootstrapIssued => "an agent to enroll with the token that was issued",
            NodeState::Enrolling => "its onboarding",
            NodeState::Active => "it serves",
            NodeState::Offline => "a heartbeat of its agent without problems",
            NodeState::Quarantined => "a person",
            NodeState::Draining => "its operation to empty it",
            NodeState::Retired => "an operator, who puts it back into service or removes it",
            NodeState::Removing => "its operation to remove it",
            NodeState::Deleted => "nothing: it is gone",
        }
        .into()
    }

    /// `run` is its newest operation; `contacts` has its agent's last heartbeat.
    pub fn explain(
        &self,
        run: Option<&Run>,
        contacts: &PeerContacts,
        now: Timestamp,
    ) -> Explanation {
        let context =
            RunContext { node: Some(self), contacts: Some(contacts), ..RunContext::default() };
        let id = &self.head.id;
        let because = match self.reason.as_str() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        let mut headline = format!("{id} is {}{because}", self.state);
        if let Some(observed) = self
            .maas
            .as_ref()
            .filter(|observed| !is_expected_maas_state(self.state, observed.state))
        {
            headline = format!("{headline}; MAAS has its machine as {}", observed.state);
        }
        // An active operation is what the node waits for; a failed one is what must be resolved.
        let speaks = run.filter(|run| !run.ended() || self.owes(run));
        if let Some(run) = speaks {
            let reported = explain_run(run, context, now);
            let mut next_commands = reported.next_commands.clone();
            if run.ended() && self.state == NodeState::Enrolling {
                next_commands.push(run.command("cancel"));
                next_commands.push(self.take_away());
            }
            next_commands.push(format!("farrier node get {id}"));
            return Explanation {
                headline: format!("{headline}; {}", reported.headline),
                next_commands,
                ..reported
            };
        }
        // For a node in service, an operation that stopped is mentioned in the headline.
        let stopped = run.filter(|run| run.ended() && !is_done(run));
        if let Some(run) = stopped.filter(|_| self.state != NodeState::Deleted) {
            headline = format!("{headline}; {}", explain_run(run, context, now).headline);
        }
        let silence = contacts.agent.as_ref().map(|agent| agent_words(agent, now));
        let waiting_for = match self.state {
            NodeState::Offline => match silence {
                Some(silence) => format!("{} ({silence})", self.rests()),
                None => self.rests(),
            },
            NodeState::BootstrapIssued
            | NodeState::Enrolling
            | NodeState::Active
            | NodeState::Quarantined
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted => self.rests(),
        };
        Explanation {
            headline,
            waiting_for: if self.state == NodeState::Active { String::new() } else { waiting_for },
            since: Some(self.head.since),
            normal: self
                .normal_duration()
                .map_or_else(String::new, |normal| format!("up to {}", format_duration(normal))),
            overdue: record_overdue(self, now),
            next_commands: self.recommended(run),
            ..Explanation::default()
        }
        .with_health(id, &self.head.health)
    }

    /// Explains one of its operations. If a newer one exists, the commands point there.
    pub fn explain_run(&self, run: &Run, context: RunContext, now: Timestamp) -> Explanation {
        let reported = explain_run(run, context, now);
        match &self.workflow {
            Some(newest) if *newest != run.spec.id && run.ended() => Explanation {
                headline: format!("{}; {newest} came after it", reported.headline),
                next_commands: vec![
                    format!("farrier why {newest}"),
                    format!("farrier why {}", self.head.id),
                ],
                ..reported
            },
            Some(_) | None => reported,
        }
    }

    /// True if a failed run still determines this state.
    fn owes(&self, run: &Run) -> bool {
        run.progress.workflow.failed()
            && !self.state.in_service()
            && self.state != NodeState::Deleted
    }

    fn take_away(&self) -> String {
        format!("farrier node decommission {} --mode full_decommission", self.head.id)
    }

    /// The command that onboards its machine as a new node.
    pub(super) fn onboard_again(&self) -> String {
        let site = self.site.as_ref().map_or_else(|| "SITE".to_string(), ToString::to_string);
        format!("farrier node onboard {} --site {site}", self.machine)
    }

    /// The commands for this state, best first.
    pub fn recommended(&self, run: Option<&Run>) -> Vec<String> {
        let (id, machine) = (&self.head.id, &self.machine);
        let mut all = match (self.state, self.quarantine) {
            (NodeState::BootstrapIssued, _) => {
                vec![format!("farrier node bootstrap --reissue {id}")]
            }
            (NodeState::Active, _) => Vec::new(),
            (NodeState::Offline, _) => {
                vec![format!("farrier machine inspect {machine}"), format!("farrier why {machine}")]
            }
            (NodeState::Quarantined, Some(Quarantine::Onboarding)) => {
                let onboarding = run.filter(|run| run.ended() && !run.progress.workflow.failed());
                let rerun = onboarding.map(|run| run.command("rerun"));
                rerun.into_iter().chain([self.take_away()]).collect()
            }
            (NodeState::Quarantined | NodeState::Retired, _) if !self.served => {
                vec![self.take_away()]
            }
            (NodeState::Quarantined, _) => vec![
                format!("farrier node release {id} --reason …"),
                format!("farrier node decommission {id} --mode reimage"),
            ],
            (NodeState::Draining | NodeState::Removing, _) => {
                vec![format!("farrier node resume {id}")]
            }
            (NodeState::Retired, _) => {
                vec![format!("farrier node reactivate {id}"), self.take_away()]
            }
            (NodeState::Deleted, _) => vec![self.onboard_again()],
            (NodeState::Enrolling, _) => match run.filter(|run| run.ended()) {
                Some(run) => vec![run.command("rerun"), self.take_away()],
                None => Vec::new(),
            },
        };
        if let Some(run) = run.filter(|run| !run.ended() || self.owes(run)) {
            all.insert(0, format!("farrier why {}", run.spec.id));
        }
        // The node serves again, but its cluster may still have it cordoned.
        if let Some(run) = run.filter(|run| self.state.in_service() && is_cordoned_by(run)) {
            all.insert(0, format!("farrier node reactivate {id}"));
            all.insert(0, run.command("retry-step"));
        }
        all.push(format!("farrier node get {id}"));
        all
    }
}

fn is_done(run: &Run) -> bool {
    matches!(run.progress.workflow, Workflow::Completed | Workflow::Reconciled)
}

/// True if a failed run may have left the node cordoned.
fn is_cordoned_by(run: &Run) -> bool {
    let speaks = |effect: &Effect| matches!(effect, Effect::Drain { .. } | Effect::Uncordon { .. });
    run.progress.workflow.failed() && run.spec.steps.iter().any(|step| speaks(&step.effect))
}
