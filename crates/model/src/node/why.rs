//! Explains the state of a node.

use super::follow::leaves_disabled;
use super::{MaasObservation, MaasState, Node, NodeState, Quarantine, is_expected_maas_state};
use crate::condition::{ConditionType, POWERED_OFF};
use crate::effect::Effect;
use crate::fault::FaultCode;
use crate::id::RunId;
use crate::lifecycle::Lifecycle;
use crate::machine::Machine;
use crate::run::{Run, Workflow};
use crate::time::{Timestamp, format_duration};
use crate::why::{
    AgentContact, Explanation, PeerContacts, RunContext, agent_words, explain_run, record_overdue,
    waits_for_agent,
};

/// What is said of a machine that was observed as off.
const SWITCHED_OFF: &str = "is switched off";

/// Facts about a node that its record does not hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeContext<'a> {
    /// Its newest operation.
    pub run: Option<&'a Run>,
    /// The last signs of life of its agent and of the peers of that operation.
    pub contacts: Option<&'a PeerContacts>,
    pub machine: Option<&'a Machine>,
    /// The operation that took its machine down while it was active.
    pub down_by: Option<&'a Run>,
}

/// Effect of the operations on a node on its rank among the objects that need a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeWork {
    /// An operation works on the node or its machine, and is ranked by itself.
    AtWork,
    /// An operation waits for the agent of the node, of which nothing can be expected since then.
    AgentLost(Timestamp),
    /// Nothing works on it, and its newest operation did not succeed or cannot be read.
    Stopped,
    /// Nothing works on it, and its newest operation succeeded; or it never had one.
    Idle,
}

impl NodeWork {
    /// The same for a node whose newest operation may wait for its agent.
    #[must_use]
    pub fn with_agent(self, run: &Run, agent: &AgentContact, now: Timestamp) -> Self {
        let lost = agent.lost_since(now).filter(|_| waits_for_agent(run));
        lost.map_or(self, Self::AgentLost)
    }

    /// `held`: an operation holds the machine of the node, or has taken it down. `newest`: the
    /// newest operation on the node, if it can be read.
    pub fn of(node: &Node, held: bool, newest: Option<&Run>) -> Self {
        match (held, &node.workflow, newest) {
            (true, _, _) => Self::AtWork,
            (false, None, _) => Self::Idle,
            (false, Some(_), Some(run)) if !run.ended() => Self::AtWork,
            (false, Some(_), Some(run)) if is_done(run) => Self::Idle,
            (false, Some(_), _) => Self::Stopped,
        }
    }
}

impl<'a> NodeContext<'a> {
    fn of_run(self, node: &'a Node) -> RunContext<'a> {
        let Self { contacts, machine, .. } = self;
        RunContext { machine, node: Some(node), contacts, ..RunContext::default() }
    }
}

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

    /// Explains why the node is in its state.
    pub fn explain(&self, context: NodeContext, now: Timestamp) -> Explanation {
        let (id, run) = (&self.head.id, context.run);
        let headline = self.headline(context, now);
        let lost = match (self.lost_agent(context, now), self.silent_agent(context, now)) {
            (Some(agent), _) => {
                format!("; it waits for the agent of {id}: {}", agent_words(agent, now))
            }
            (None, Some(agent)) => format!("; its agent: {}", agent_words(agent, now)),
            (None, None) => String::new(),
        };
        // An active operation is what the node waits for; a failed one is what must be resolved.
        let speaks = run.filter(|run| !run.ended() || self.owes(run));
        if let Some(run) = speaks {
            let reported = explain_run(run, context.of_run(self), now);
            let mut next_commands = self.agent_repairs(context, now);
            next_commands.extend(reported.next_commands.clone());
            if run.ended() && self.state == NodeState::Enrolling {
                // A later operation on the machine ends the repairs that continue this one.
                let again = self.onboard_anew(run);
                next_commands.extend(Some(again).filter(|one| !next_commands.contains(one)));
                next_commands.push(run.command("cancel"));
                next_commands.push(self.take_away());
            }
            next_commands.push(format!("farrier node get {id}"));
            return Explanation {
                headline: format!("{headline}; {}{lost}", reported.headline),
                next_commands,
                ..reported
            };
        }
        // For a node in service, an operation that stopped is told beside its state.
        let stopped = run.filter(|run| run.ended() && !is_done(run));
        let stopped = stopped.filter(|_| self.state != NodeState::Deleted);
        let stopped = stopped.map(|run| (run, explain_run(run, context.of_run(self), now)));
        let waiting_for = self.waiting_for(context, now);
        let reported = Explanation {
            headline: format!("{headline}{lost}"),
            waiting_for: if self.state == NodeState::Active { String::new() } else { waiting_for },
            since: Some(self.head.since),
            normal: self
                .normal_duration()
                .map_or_else(String::new, |normal| format!("up to {}", format_duration(normal))),
            overdue: record_overdue(self, now),
            next_commands: [self.agent_repairs(context, now), self.commands(context)].concat(),
            ..Explanation::default()
        };
        let reported = match stopped {
            Some((run, end)) => self.with_stopped(reported, run, context, end),
            None => reported,
        };
        reported.with_health(id, &self.head.health)
    }

    /// The state, its cause, and what MAAS has instead.
    fn headline(&self, context: NodeContext, now: Timestamp) -> String {
        let because = match (context.down_by.filter(|_| self.down_by.is_some()), &*self.reason) {
            // The reason was written when the operation began; this is what became of it.
            (Some(run), _) if run.ended() => {
                let ended = run.progress.finished_at.unwrap_or(run.spec.created_at);
                let (id, how) = (&run.spec.id, run.phase().as_str());
                let ago = format_duration(now.since(ended));
                format!(": {id} took its machine down, and {how} {ago} ago")
            }
            (_, "") => String::new(),
            (_, reason) => format!(": {reason}"),
        };
        let state = format!("{} is {}{because}", self.head.id, self.state);
        let down = self
            .machine_down(context)
            .map_or_else(String::new, |how| format!("; its machine {} {how}", self.machine));
        let held = self
            .held_by(context)
            .map_or_else(String::new, |run| format!("; {run} holds its machine {}", self.machine));
        let disabled = self.state == NodeState::Offline && context.run.is_some_and(leaves_disabled);
        let idle = if disabled { "; it takes no new work" } else { "" };
        let lost = self.lost_onboarding(context).map_or_else(String::new, |run| {
            format!("; its onboarding {run} cannot be read, and nothing works on it")
        });
        let differs = |maas: &&MaasObservation| !is_expected_maas_state(self.state, maas.state);
        let maas = self.maas.as_ref().filter(differs).map_or_else(String::new, |observed| {
            format!("; MAAS has its machine as {}", observed.state)
        });
        format!("{state}{idle}{down}{held}{lost}{maas}")
    }

    /// The agent that the node or its operation waits for, if nothing can be expected of it. A
    /// node that is offline waits for a heartbeat, and says so where its agent is only silent.
    fn lost_agent<'a>(&self, context: NodeContext<'a>, now: Timestamp) -> Option<&'a AgentContact> {
        let agent = context.contacts?.agent.as_ref()?;
        let waits = context.run.is_some_and(waits_for_agent)
            || (self.state == NodeState::Offline && agent.revoked_at.is_some());
        Some(agent).filter(|agent| waits && agent.lost_since(now).is_some())
    }

    /// The agent of a node that is being drained, if nothing is heard of it: whatever the drain
    /// waits for, the node itself may be gone.
    fn silent_agent<'a>(
        &self,
        context: NodeContext<'a>,
        now: Timestamp,
    ) -> Option<&'a AgentContact> {
        let agent = context.contacts?.agent.as_ref()?;
        let drains = self.state == NodeState::Draining;
        Some(agent).filter(|agent| drains && agent.lost_since(now).is_some())
    }

    /// The commands that bring the agent back.
    fn agent_repairs(&self, context: NodeContext, now: Timestamp) -> Vec<String> {
        let Some(agent) = self.lost_agent(context, now) else { return Vec::new() };
        vec![match agent.revoked_at {
            Some(_) => self.reissue(),
            None => format!("farrier machine inspect {}", self.machine),
        }]
    }

    /// The command that issues another token for its agent.
    fn reissue(&self) -> String {
        format!("farrier node bootstrap --reissue {}", self.head.id)
    }

    /// The onboarding that the node waits for, if it cannot be read or was set aside.
    fn lost_onboarding(&self, context: NodeContext) -> Option<&RunId> {
        let lost = self.waits_in_vain(context) && context.run.is_none();
        self.workflow.as_ref().filter(|_| lost)
    }

    /// True if the onboarding that the node waits for has ended, or cannot be read.
    fn waits_in_vain(&self, context: NodeContext) -> bool {
        let waits = matches!(self.state, NodeState::BootstrapIssued | NodeState::Enrolling);
        waits && self.workflow.is_some() && context.run.is_none_or(Run::ended)
    }

    /// What was observed of the machine of a node that should run on it, if the machine is down.
    fn machine_down(&self, context: NodeContext) -> Option<&'static str> {
        let known = context.machine?.conditions.get(ConditionType::Reachable)?;
        match self.state {
            NodeState::Offline | NodeState::Draining | NodeState::Active if known.status => None,
            NodeState::Offline | NodeState::Draining | NodeState::Active => {
                Some(if known.reason == POWERED_OFF { SWITCHED_OFF } else { "does not answer" })
            }
            // Its machine may well be off, or is being installed.
            NodeState::BootstrapIssued
            | NodeState::Enrolling
            | NodeState::Quarantined
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted => None,
        }
    }

    /// True if the machine of a node that should run on it was observed as off.
    fn machine_is_off(&self, context: NodeContext) -> bool {
        self.machine_down(context) == Some(SWITCHED_OFF)
    }

    /// The operation on its machine that an offline node waits for. One that has taken the machine
    /// down is told by itself.
    fn held_by<'a>(&self, context: NodeContext<'a>) -> Option<&'a RunId> {
        let down = context.down_by.filter(|run| self.down_by.is_some() && !run.ended());
        let waits = self.state == NodeState::Offline && down.is_none();
        self.other_holder(context.machine?).filter(|_| waits)
    }

    fn waiting_for(&self, context: NodeContext, now: Timestamp) -> String {
        let agent = context.contacts.and_then(|contacts| contacts.agent.as_ref());
        let silence =
            agent.map_or_else(String::new, |agent| format!(" ({})", agent_words(agent, now)));
        let down = context.down_by.filter(|run| self.down_by.is_some() && !run.ended());
        match (self.state, down) {
            _ if self.waits_in_vain(context) => "a person".into(),
            (NodeState::Offline, Some(run)) => {
                format!("{} to end, then {}{silence}", run.spec.id, self.rests())
            }
            (NodeState::Offline, None) if context.run.is_some_and(leaves_disabled) => {
                "an operator, who has its drain continued or canceled".into()
            }
            (NodeState::Offline, None) => {
                let held = self.held_by(context);
                let end = held.map_or_else(String::new, |run| format!("{run} to end, then "));
                format!("{end}{}{silence}", self.rests())
            }
            (
                NodeState::BootstrapIssued
                | NodeState::Enrolling
                | NodeState::Active
                | NodeState::Quarantined
                | NodeState::Draining
                | NodeState::Retired
                | NodeState::Removing
                | NodeState::Deleted,
                _,
            ) => self.rests(),
        }
    }

    /// The commands for this state and for what is known about its machine, best first.
    fn commands(&self, context: NodeContext) -> Vec<String> {
        let mut commands = self.recommended(context.run);
        let down = context.down_by.filter(|run| self.down_by.is_some() && !run.ended());
        if let Some(run) = down {
            commands.insert(0, format!("farrier why {}", run.spec.id));
            return commands;
        }
        if let Some(run) = self.held_by(context) {
            commands.insert(0, format!("farrier why {run}"));
            return commands;
        }
        if self.machine_is_off(context) {
            commands.insert(0, format!("farrier machine power {} on", self.machine));
        }
        commands
    }

    /// Adds the end of an operation that stopped: the failure, and the commands that repair it.
    fn with_stopped(
        &self,
        mut reported: Explanation,
        run: &Run,
        context: NodeContext,
        end: Explanation,
    ) -> Explanation {
        reported.add_cause_repairs(run, context.machine, Some(self));
        Explanation {
            headline: format!("{}; {}", reported.headline, end.headline),
            failed: end.failed,
            fault: end.fault,
            ..reported
        }
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

    /// True if MAAS holds its machine in Failed deployment, which only a release ends.
    pub(crate) fn has_failed_deployment(&self) -> bool {
        self.maas.as_ref().is_some_and(|observed| observed.state == MaasState::FailedDeployment)
    }

    /// The command that begins its onboarding again.
    fn onboard_anew(&self, onboarding: &Run) -> String {
        let failure = onboarding.progress.failure.as_ref();
        let deploy_failed = failure.is_some_and(|one| one.fault.code == FaultCode::DeployFailed);
        let must_release = deploy_failed || self.has_failed_deployment();
        onboarding.command(if must_release { "restart-clean" } else { "rerun" })
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
                vec![self.reissue()]
            }
            (NodeState::Active, _) => Vec::new(),
            (NodeState::Offline, _) => {
                let undone = run.filter(|run| leaves_disabled(run));
                let ways_out = undone.map(|run| {
                    let resume = format!("farrier node resume {id}");
                    [resume, run.command("rerun"), run.command("cancel")]
                });
                let look = [
                    format!("farrier machine inspect {machine}"),
                    format!("farrier why {machine}"),
                ];
                ways_out.into_iter().flatten().chain(look).collect()
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
            (NodeState::Enrolling, _) => match run {
                Some(run) if run.ended() => vec![self.onboard_anew(run), self.take_away()],
                // Its onboarding cannot be read, so nothing can continue it.
                None if self.workflow.is_some() => vec![self.take_away()],
                Some(_) | None => Vec::new(),
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
