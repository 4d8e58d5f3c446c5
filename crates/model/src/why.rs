//! Explanations for `farrier why`: why an object is in its state, since when, what is normal, and
//! what to type now.
//!
//! Every state of a machine or a run has an explanation here; the matches are closed, so a state
//! without one does not compile.

mod approval;
mod attention;
mod command;
mod condition;
mod credential;
mod device;
mod disk;
mod failed_change;
mod feed;
mod group;
mod network;
mod notifier;
mod outcome;
mod rest;
mod stored;
mod wait;

pub use approval::{explain_break_glass, rank_break_glass};
pub use attention::{
    Rank, Urgency, rank_alerts, rank_device, rank_host, rank_machine, rank_node, rank_rack,
    rank_run, rank_site,
};
pub use credential::{explain_expiry, rank_expiry};
pub use device::{explain_device, record_overdue};
pub use disk::install_command;
pub use feed::dead_feeds;
pub use group::{
    CREDENTIAL, CauseGroup, CauseLinks, ListedObject, Location, SharedCause, ShelvesByRack,
    Suspect, group_by_cause,
};
pub use notifier::{explain_notifier, rank_notifier};
pub use outcome::{operation_words, possible_damage, refused_words, writes_disk};
pub use stored::{SetAside, explain_set_aside, explain_unreadable};
pub(crate) use wait::agent_words;
pub use wait::{
    AgentContact, ChildProgress, LastLine, MAX_SAMPLES, MIN_SAMPLES, PeerContacts, ReplicaContact,
    UsualDuration, duration_key, ended_waits, named_duration_key, overdue, waits_for_agent,
};

use crate::condition::ConditionType;
use crate::fault::{FaultCode, Incident};
use crate::health::HealthSummary;
use crate::machine::view::EffectiveState;
use crate::machine::{Machine, MachineProblem, Phase};
use crate::node::{Node, NodeState};
use crate::rack::RackPowerOn;
use crate::rack::maintenance::{FIRMWARE_SKIPPED, switched_power};
use crate::run::{Failure, Run, RunPhase, StopKind, StopRequest, Workflow};
use crate::time::{Timestamp, format_duration};
use disk::{REIMAGE, disk_cause, disk_note, half_written, reimage};
use failed_change::add_failed_changes;
use network::add_network_boot;
use outcome::imaging_words;
use rest::{idle, in_maintenance, out_of_use};

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

/// The objects that a run concerns, and its peers. The default is for a reader of the run alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunContext<'a> {
    pub machine: Option<&'a Machine>,
    /// The node identity on the machine, if there is one.
    pub node: Option<&'a Node>,
    pub contacts: Option<&'a PeerContacts>,
    /// The last operation that was to write the disk of the machine.
    pub imaging: Option<&'a Run>,
    /// The operation of [`Machine::failed_change`].
    pub failed_change: Option<&'a Run>,
}

/// `run` is the active run of the machine, or the one that its state comes from.
pub fn explain_machine(
    machine: &Machine,
    run: Option<&Run>,
    context: RunContext,
    now: Timestamp,
) -> Explanation {
    let context = RunContext { machine: Some(machine), ..context };
    let mut reported = explain_state(machine, run, context, now);
    reported.notes.extend(disk_note(machine));
    add_network_boot(machine, &mut reported);
    add_failed_changes(machine, run, &mut reported);
    let mut reported = match context.node {
        Some(node) => as_node(machine, run, node, reported),
        None => reported,
    };
    // The run that failed is explained until an operator has decided about it.
    let undecided = machine.is(ConditionType::NeedsIntervention)
        || machine.is(ConditionType::OperationCanceled);
    if let Some(damage) = run.filter(|_| undecided).and_then(possible_damage) {
        reported.headline = format!("{damage}; {}", reported.headline);
        reported.may_be_damaged = true;
    }
    // The end of the explained run is in the headline already.
    let told = |imaging: &&Run| run.is_none_or(|run| run.spec.id != imaging.spec.id);
    reported.notes.extend(context.imaging.filter(told).map(|run| imaging_words(run, now)));
    reported.with_health(machine.id.as_str(), &machine.health)
}

/// Explains a machine that is held by an operation which the caller may not see: it works on other
/// devices too, and its words name them.
pub fn explain_held_machine(machine: &Machine) -> Explanation {
    let id = &machine.id;
    Explanation {
        headline: format!("{id} is busy: an operation on other devices holds it too"),
        waiting_for: "the end of that operation".into(),
        next_commands: vec![format!("farrier get {id}")],
        ..Explanation::default()
    }
}

/// Adapts the explanation of a machine that is or was a node: the node's explanation comes first.
fn as_node(
    machine: &Machine,
    run: Option<&Run>,
    node: &Node,
    mut reported: Explanation,
) -> Explanation {
    let (id, node_id) = (&machine.id, &node.head.id);
    let is_node = format!("it is {node_id}, which is {}", node.state);
    let why = format!("farrier why {node_id}");
    // Two facts are left out for a node: that the machine was never provisioned otherwise, and that
    // a run on the node was canceled.
    let canceled =
        machine.is(ConditionType::OperationCanceled) && run.is_some_and(Run::works_on_node);
    let quiet = match machine.effective_state() {
        EffectiveState::New => true,
        // Its onboarding installed the image, and the phase is that of a new machine.
        EffectiveState::Idle => canceled || machine.phase == Phase::FactoryReady,
        EffectiveState::Maintenance => canceled,
        EffectiveState::Busy | EffectiveState::Attention | EffectiveState::Blocked => false,
    };
    if quiet && machine.problem().is_none() {
        return plain(format!("{id} is a node: {is_node}"), vec![why, format!("farrier get {id}")]);
    }
    reported.headline = format!("{}; {is_node}", reported.headline);
    if node.state.in_service() {
        reported.next_commands.retain(|command| !command.starts_with(REIMAGE));
    }
    // The gate in-service refuses it.
    if node.state == NodeState::Active {
        reported.next_commands.retain(|command| !command.starts_with("farrier reboot "));
    }
    // A node in service does not know of a failed operation on its machine.
    let elsewhere = machine.effective_state() == EffectiveState::Attention
        && node.state.in_service()
        && run.is_some_and(|run| !run.works_on_node());
    // A machine that is down is the cause, and its node follows it.
    let is_down = matches!(
        machine.problem(),
        Some(MachineProblem::Unreachable(_) | MachineProblem::BmcUnreachable(_))
    );
    let last = elsewhere || (is_down && node.state == NodeState::Offline);
    let place = if last { reported.next_commands.len() } else { 0 };
    reported.next_commands.insert(place, why);
    reported
}

fn explain_state(
    machine: &Machine,
    run: Option<&Run>,
    context: RunContext,
    now: Timestamp,
) -> Explanation {
    let (id, state) = (&machine.id, machine.effective_state());
    let rests =
        matches!(state, EffectiveState::Maintenance | EffectiveState::New | EffectiveState::Idle);
    if let Some(write) = machine.open_disk_write.as_ref().filter(|_| rests) {
        return half_written(machine, write, context.imaging);
    }
    match state {
        EffectiveState::Blocked => blocked(machine),
        EffectiveState::Attention => attention(machine, run, context, now),
        EffectiveState::Busy => match run {
            Some(run) => Explanation {
                headline: format!("{id} is busy: {}", headline(run)),
                ..explain_run(run, context, now)
            },
            None => plain(format!("{id} is busy, and its operation cannot be read"), vec![]),
        },
        EffectiveState::Maintenance | EffectiveState::New | EffectiveState::Idle
            if machine.is(ConditionType::OperationCanceled) && machine.problem().is_none() =>
        {
            canceled(machine, run)
        }
        EffectiveState::Maintenance => in_maintenance(machine, run, context),
        EffectiveState::New => out_of_use(machine, context),
        EffectiveState::Idle => idle(machine, context),
    }
}

fn plain(headline: String, next_commands: Vec<String>) -> Explanation {
    Explanation { headline, next_commands, ..Explanation::default() }
}

/// Nothing is waiting, but the canceled run may have left work half done.
fn canceled(machine: &Machine, run: Option<&Run>) -> Explanation {
    let id = &machine.id;
    let known = machine.conditions.get(ConditionType::OperationCanceled);
    let mut next_commands = vec![format!("farrier get {id}")];
    let what = match run.filter(|run| run.phase() == RunPhase::Canceled) {
        Some(run) => {
            next_commands.insert(0, run.command("rerun"));
            format!("{}, so what it began may be half done", headline(run))
        }
        None => "its last operation was canceled".into(),
    };
    Explanation {
        headline: format!("{id} is in phase {}, and {what}", machine.phase.as_str()),
        since: known.map(|known| known.last_transition),
        next_commands,
        ..Explanation::default()
    }
}

fn blocked(machine: &Machine) -> Explanation {
    let id = &machine.id;
    let clear = |undo: &str| format!("farrier admin {undo} {id} --reason …");
    let (flag, next_commands) = if machine.is(ConditionType::Retired) {
        (ConditionType::Retired, vec![clear("clear-retired")])
    } else {
        let back = format!("farrier machine exit-rma {id}");
        (ConditionType::Rma, vec![back, clear("clear-rma")])
    };
    let known = machine.conditions.get(flag);
    let reason = known.map_or("", |known| known.reason.as_str());
    Explanation {
        headline: format!("{id} is blocked: flagged {} ({reason})", flag.as_str()),
        waiting_for: "an administrator to clear the flag".into(),
        since: known.map(|known| known.last_transition),
        normal: "it stays so until an operator decides".into(),
        next_commands,
        ..Explanation::default()
    }
}

fn attention(
    machine: &Machine,
    run: Option<&Run>,
    context: RunContext,
    now: Timestamp,
) -> Explanation {
    let id = &machine.id;
    let known = machine.conditions.get(ConditionType::NeedsIntervention);
    let clear = format!("farrier admin clear-needs-intervention {id} --reason …");
    match run {
        Some(run) if !run.ended() => {
            let reported = explain_run(run, context, now);
            let headline = format!("{id} needs attention, and is busy: {}", headline(run));
            Explanation { headline, ..reported }
        }
        Some(run) => {
            let mut reported = explain_run(run, context, now);
            reported.headline =
                format!("{id} needs attention: {}{}", disk_cause(machine), headline(run));
            let write = machine.open_disk_write.as_ref();
            if write.is_some() && machine.phase == Phase::Maintenance {
                reported.next_commands.push(reimage(machine, context.imaging));
            }
            reported.next_commands.push(clear);
            reported
        }
        None => Explanation {
            headline: format!(
                "{id} needs attention: {}{}",
                disk_cause(machine),
                known.map_or("", |known| known.reason.as_str())
            ),
            since: known.map(|known| known.last_transition),
            next_commands: vec![format!("farrier history {id}"), clear],
            ..Explanation::default()
        },
    }
}

pub fn explain_run(run: &Run, context: RunContext, now: Timestamp) -> Explanation {
    let wait = wait::waiting(run, context, now);
    let failure = run.progress.failure.as_ref();
    let mut reported = Explanation {
        headline: headline(run),
        failed: failure.map(|failure| failed_words(run, failure, context)).unwrap_or_default(),
        fault: failure.map(|failure| failure.fault.code),
        since: run.progress.finished_at.or(Some(run.spec.created_at)),
        next_commands: next_commands(run, context),
        requested_by: outcome::requester_words(run, now),
        notes: skipped_firmware(run).into_iter().collect(),
        ..Explanation::default()
    };
    reported.notes.extend(wait::down_under_cluster_work(run, context));
    if let Some(wait) = wait {
        reported.overdue = wait.overdue(now);
        reported.waiting_for = wait.what;
        reported.since = Some(wait.since);
        reported.normal = wait.words;
        reported.last_word = last_word(context, now);
    }
    if reported.failed.is_empty()
        && let Some(step) = run.progress.current().filter(|step| step.attempt > 1)
    {
        reported.failed = format!("an earlier attempt: {}", step.message);
    }
    reported
}

fn failed_words(run: &Run, failure: &Failure, context: RunContext) -> String {
    let RunContext { machine, node, .. } = context;
    Incident { fault: &failure.fault, run: Some(run), machine, node }.describe()
}

/// The reason why an operation applied no firmware, if it skipped that.
pub fn skipped_firmware(run: &Run) -> Option<String> {
    let why = run.spec.params.get(FIRMWARE_SKIPPED).filter(|why| !why.is_empty())?;
    Some(format!("{} applied no firmware: {why}", run.spec.id))
}

/// The last line of the step's log, and its age.
fn last_word(context: RunContext, now: Timestamp) -> String {
    let line = context.contacts.and_then(|contacts| contacts.last_line.as_ref());
    line.map_or_else(String::new, |line| {
        format!("{} ago: {}", format_duration(now.since(line.at)), line.text)
    })
}

fn headline(run: &Run) -> String {
    let id = &run.spec.id;
    let what = format!("{} {id}", run.spec.run_type.as_str());
    // A run that failed before its first step has no current step.
    let failed_at = run.progress.failure.as_ref().map(|failure| failure.step.clone());
    let step = match run.current_step() {
        step if step.is_empty() && run.phase() == RunPhase::Failed => failed_at.unwrap_or_default(),
        step => step,
    };
    match run.progress.workflow {
        Workflow::Pending => format!("{what} is accepted and not yet started"),
        Workflow::Running if step.is_empty() => format!("{what} has done all its steps"),
        Workflow::Running if run.progress.halting() => format!("{what} is stopping step {step}"),
        Workflow::Running => format!("{what} is at step {step}"),
        Workflow::Compensating => format!("{what} is undoing what it did, at step {step}"),
        Workflow::Completed => format!("{what} succeeded"),
        Workflow::Reconciled => format!("{what} succeeded after the observed state was adopted"),
        Workflow::Cancelled => {
            let by = run.progress.stop_request.as_ref().map(StopRequest::describe);
            format!("{what} was canceled{}", by.unwrap_or_default())
        }
        Workflow::FailedRetryable => {
            format!("{what} failed at step {step}; trying again is safe{}", stop_words(run))
        }
        Workflow::FailedManualIntervention => {
            format!("{what} stopped at step {step} and waits for a person{}", stop_words(run))
        }
    }
}

/// Names the actor that froze the run, and the reason; or that asked for a cancel in vain.
fn stop_words(run: &Run) -> String {
    let by_hand = |halt: &&StopRequest| halt.kind == StopKind::Freeze && !halt.reason.is_empty();
    let frozen = run.progress.stop_request.as_ref().filter(by_hand);
    match (frozen, run.progress.unfinished_cancel()) {
        (Some(StopRequest { by, reason, .. }), _) => format!(", frozen by {by}: {reason}"),
        (None, Some(halt)) => format!("; {}", halt.describe_unfinished()),
        (None, None) => String::new(),
    }
}

fn next_commands(run: &Run, context: RunContext) -> Vec<String> {
    let id = &run.spec.id;
    let target = &run.spec.target;
    match run.phase() {
        RunPhase::Pending | RunPhase::Running => {
            let children = context.contacts.map_or(&[][..], |contacts| &contacts.children);
            let slowest = children.iter().min_by_key(|child| child.since);
            let child = slowest.map(|child| format!("farrier why {}", child.run));
            let own = [format!("farrier logs -f {id}"), run.command("cancel")];
            child.into_iter().chain(own).collect()
        }
        RunPhase::Succeeded => vec![target.show_command()],
        RunPhase::Canceled => {
            let on = switched_power(run).then(|| target.rack()).flatten().map(RackPowerOn::of_rack);
            let on = on.map(|on| on.to_string());
            on.into_iter().chain([run.command("rerun"), target.show_command()]).collect()
        }
        RunPhase::Failed => repairs(run, context).into_iter().map(|(_, command)| command).collect(),
    }
}

/// The commands that repair a failed run, best first, and whether they only read.
fn repairs(run: &Run, context: RunContext) -> Vec<(bool, String)> {
    let RunContext { machine, node, .. } = context;
    let Some(Failure { fault, .. }) = &run.progress.failure else {
        return vec![
            (false, run.command("resume")),
            (true, format!("farrier logs {}", run.spec.id)),
        ];
    };
    let incident = Incident { fault, run: Some(run), machine, node };
    let own = incident.repairs().map(|(repair, command)| (repair.reads(), command));
    let mut commands: Vec<_> = own.collect();
    // A child run is resumed through its parent, which waits for it.
    if let Some(parent) = &run.spec.parent_run {
        let retry = run.command("retry-step");
        let at = commands.iter().position(|(_, one)| *one == retry).unwrap_or(commands.len());
        commands.insert(at, (false, format!("farrier operation retry-step {parent}")));
    }
    commands
}

/// The one command that fits a failed run best: one that only reads does not resolve the failure.
pub fn next_command(run: &Run) -> Option<String> {
    match run.phase() {
        RunPhase::Failed => {
            let commands = repairs(run, RunContext::default()).into_iter();
            commands.filter(|(reads, _)| !reads).map(|(_, command)| command).next()
        }
        RunPhase::Pending | RunPhase::Running | RunPhase::Succeeded | RunPhase::Canceled => None,
    }
}
