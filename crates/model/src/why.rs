//! Explanations for `farrier why`: why an object is in its state, since when, what is normal, and
//! what to type now.
//!
//! Every state of a machine or a run has an explanation here; the matches are closed, so a state
//! without one does not compile.

mod device;
mod remedy;
mod stored;

pub use device::{device_overdue, explain_device};
pub use stored::{SetAside, explain_set_aside, explain_unreadable};

use crate::condition::{Condition, ConditionType};
use crate::effect::CallVerb;
use crate::fault::FaultCode;
use crate::health::HealthSummary;
use crate::machine::Machine;
use crate::machine::view::EffectiveState;
use crate::node::Node;
use crate::run::{Run, RunPhase, StepState, StopKind, StopRequest, Workflow};
use crate::time::{Timestamp, format_duration};
use remedy::own_commands;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explanation {
    pub headline: String,
    pub waiting_for: String,
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
}

impl Explanation {
    /// Adds the health reports of the object.
    #[must_use]
    pub(crate) fn with_health(mut self, id: &str, health: &HealthSummary) -> Self {
        self.health = health.messages();
        if !self.health.is_empty() {
            self.next_commands.push(format!("farrier health get {id}"));
        }
        self
    }
}

/// The reason why a run waits, and the normal duration of the wait.
struct Wait {
    what: String,
    since: Timestamp,
    normal: Duration,
}

/// The normal time for which a run waits for a worker to claim it.
const PENDING_NORMAL: Duration = Duration::from_secs(5);
const STATUS_NORMAL: Duration = Duration::from_secs(30);

/// `node` is the node identity on this machine, if there is one.
pub fn explain_machine(
    machine: &Machine,
    run: Option<&Run>,
    node: Option<&Node>,
    now: Timestamp,
) -> Explanation {
    let reported = explain_state(machine, run, now);
    let reported = match node {
        Some(node) => as_node(machine, run, node, reported),
        None => reported,
    };
    reported.with_health(machine.id.as_str(), &machine.health)
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
        EffectiveState::Idle | EffectiveState::Maintenance => canceled,
        EffectiveState::Busy | EffectiveState::Attention | EffectiveState::Blocked => false,
    };
    if quiet {
        return plain(format!("{id} is a node: {is_node}"), vec![why, format!("farrier get {id}")]);
    }
    reported.headline = format!("{}; {is_node}", reported.headline);
    if node.state.in_service() {
        reported.next_commands.retain(|command| !command.starts_with("farrier reimage "));
    }
    reported.next_commands.insert(0, why);
    reported
}

fn explain_state(machine: &Machine, run: Option<&Run>, now: Timestamp) -> Explanation {
    let id = &machine.id;
    match machine.effective_state() {
        EffectiveState::Blocked => blocked(machine),
        EffectiveState::Attention => attention(machine, run, now),
        EffectiveState::Busy => match run {
            Some(run) => Explanation {
                headline: format!("{id} is busy: {}", headline(run)),
                ..explain_run(run, now)
            },
            None => plain(format!("{id} is busy, and its operation cannot be read"), vec![]),
        },
        EffectiveState::Maintenance | EffectiveState::New | EffectiveState::Idle
            if machine.is(ConditionType::OperationCanceled) =>
        {
            canceled(machine, run)
        }
        EffectiveState::Maintenance => in_maintenance(machine),
        EffectiveState::New => plain(
            format!("{id} is new: registered, and never provisioned"),
            vec![
                format!("farrier enter-maintenance {id}"),
                format!("farrier reimage {id} --image ubuntu-2204"),
            ],
        ),
        EffectiveState::Idle => idle(machine),
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

/// The first of these conditions that is bad.
fn bad_news(
    machine: &Machine,
    looked_at: [ConditionType; 3],
) -> Option<(ConditionType, &Condition)> {
    looked_at
        .into_iter()
        .filter_map(|condition| Some((condition, machine.conditions.get(condition)?)))
        .find(|(condition, known)| condition.bad_status() == Some(known.status))
}

/// A machine in maintenance may well be powered off. An unreachable BMC is shown all the same.
fn in_maintenance(machine: &Machine) -> Explanation {
    let id = &machine.id;
    let intended = format!("{id} is in maintenance, as its operator intends");
    let leave = format!("farrier exit-maintenance {id}");
    let looked_at =
        [ConditionType::BmcReachable, ConditionType::Degraded, ConditionType::Reachable];
    let Some((condition, known)) = bad_news(machine, looked_at) else {
        let image = format!("farrier reimage {id} --image ubuntu-2204");
        return plain(format!("{intended}; nothing is waiting"), vec![leave, image]);
    };
    let fault = FaultCode::parse(&known.reason);
    let probe = match fault {
        Some(FaultCode::LoginRefused) => {
            format!("farrier bmc unlock {}", machine.spec.bmc_endpoint)
        }
        Some(code) => format!("farrier fault {}", code.as_str()),
        None => format!("farrier machine inspect {id}"),
    };
    Explanation {
        headline: format!(
            "{intended}; {} is {}: {}",
            condition.as_str(),
            known.status,
            known.reason
        ),
        since: Some(known.last_transition),
        failed: known.reason.clone(),
        fault,
        next_commands: vec![probe, format!("farrier history {id}"), leave],
        ..Explanation::default()
    }
}

fn idle(machine: &Machine) -> Explanation {
    let id = &machine.id;
    let looked_at =
        [ConditionType::Reachable, ConditionType::BmcReachable, ConditionType::Degraded];
    match (bad_news(machine, looked_at), machine.health.messages().first()) {
        (None, None) => plain(
            format!("{id} is ready for work: phase READY, nothing active, nothing wrong"),
            vec![format!("farrier get {id}")],
        ),
        (None, Some(message)) => plain(format!("{id} is ready, but {message}"), Vec::new()),
        (Some((condition, known)), _) => Explanation {
            headline: format!(
                "{id} is ready, but {} is {}: {}",
                condition.as_str(),
                known.status,
                known.reason
            ),
            since: Some(known.last_transition),
            failed: known.reason.clone(),
            next_commands: vec![format!("farrier reboot {id}"), format!("farrier history {id}")],
            ..Explanation::default()
        },
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

fn attention(machine: &Machine, run: Option<&Run>, now: Timestamp) -> Explanation {
    let id = &machine.id;
    let known = machine.conditions.get(ConditionType::NeedsIntervention);
    let clear = format!("farrier admin clear-needs-intervention {id} --reason …");
    match run {
        Some(run) if !run.ended() => {
            let reported = explain_run(run, now);
            let headline = format!("{id} needs attention, and is busy: {}", headline(run));
            Explanation { headline, ..reported }
        }
        Some(run) => {
            let mut reported = explain_run(run, now);
            reported.headline = format!("{id} needs attention: {}", headline(run));
            reported.next_commands.push(clear);
            reported
        }
        None => Explanation {
            headline: format!(
                "{id} needs attention: {}",
                known.map_or("", |known| known.reason.as_str())
            ),
            since: known.map(|known| known.last_transition),
            next_commands: vec![format!("farrier history {id}"), clear],
            ..Explanation::default()
        },
    }
}

pub fn explain_run(run: &Run, now: Timestamp) -> Explanation {
    let wait = waiting(run);
    let failure = run.progress.failure.as_ref();
    let mut reported = Explanation {
        headline: headline(run),
        failed: failure.map(|failure| failure.fault.message.clone()).unwrap_or_default(),
        fault: failure.map(|failure| failure.fault.code),
        since: run.progress.finished_at.or(Some(run.spec.created_at)),
        next_commands: next_commands(run),
        ..Explanation::default()
    };
    if let Some(wait) = wait {
        reported.waiting_for = wait.what;
        reported.since = Some(wait.since);
        reported.normal = format!("up to {}", format_duration(wait.normal));
        reported.overdue = now.since(wait.since) > wait.normal;
    }
    if reported.overdue {
        reported.next_commands.insert(0, run.command("resume"));
    }
    if reported.failed.is_empty()
        && let Some(step) = run.progress.current().filter(|step| step.attempt > 1)
    {
        reported.failed = format!("an earlier attempt: {}", step.message);
    }
    reported
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
        Workflow::Cancelled => format!("{what} was canceled"),
        Workflow::FailedRetryable => format!("{what} failed at step {step}; trying again is safe"),
        Workflow::FailedManualIntervention => {
            format!("{what} stopped at step {step} and waits for a person{}", frozen(run))
        }
    }
}

/// Names the actor that froze the run, and the reason.
fn frozen(run: &Run) -> String {
    let by_hand = |halt: &&StopRequest| halt.kind == StopKind::Freeze && !halt.reason.is_empty();
    run.progress.stop_request.as_ref().filter(by_hand).map_or_else(String::new, |halt| {
        let StopRequest { by, reason, .. } = halt;
        format!(", frozen by {by}: {reason}")
    })
}

fn waiting(run: &Run) -> Option<Wait> {
    match run.progress.workflow {
        Workflow::Pending => Some(Wait {
            what: "a worker to take it".into(),
            since: run.spec.created_at,
            normal: PENDING_NORMAL,
        }),
        Workflow::Running | Workflow::Compensating => Some(match run.progress.current() {
            Some(step) => step_wait(run, step),
            None => Wait {
                what: "a worker to conclude it".into(),
                since: run.progress.started_at.unwrap_or(run.spec.created_at),
                normal: PENDING_NORMAL,
            },
        }),
        Workflow::Completed
        | Workflow::FailedRetryable
        | Workflow::FailedManualIntervention
        | Workflow::Cancelled
        | Workflow::Reconciled => None,
    }
}

fn step_wait(run: &Run, step: &StepState) -> Wait {
    let name = run.step_name(step);
    let timeout = run.plan_step(step).map_or(Duration::ZERO, |plan| plan.timeout());
    let begun = step.started_at.unwrap_or(run.spec.created_at);
    if let (Some(at), None) = (step.not_before, &step.intent) {
        // A step that was only observed has no attempt to count from.
        let since = step.attempt_since.max(begun);
        let what = match step.next_verb {
            CallVerb::Perform => {
                format!("the next attempt at step {name} (attempt {} failed)", step.attempt)
            }
            CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => {
                format!("the next look at step {name} ({})", step.message)
            }
        };
        return Wait { what, since, normal: at.since(since) + PENDING_NORMAL };
    }
    let Some(requested) = &step.intent else {
        return Wait { what: format!("step {name} to start"), since: begun, normal: timeout };
    };
    let noun = run.spec.target.kind.noun();
    let (what, since, timeouts) = match requested.verb {
        CallVerb::Perform => {
            (format!("the {noun} to finish step {name}"), step.attempt_since, timeout)
        }
        CallVerb::Follow => {
            (format!("step {name}, begun earlier, to finish"), step.attempt_since, timeout)
        }
        CallVerb::GetStatus => (format!("the status of step {name}"), requested.at, STATUS_NORMAL),
        CallVerb::Observe => {
            (format!("a check whether step {name} already holds"), requested.at, STATUS_NORMAL)
        }
        CallVerb::Stop => (format!("the {noun} to stop step {name}"), requested.at, STATUS_NORMAL),
    };
    Wait { what, since, normal: timeouts }
}

fn next_commands(run: &Run) -> Vec<String> {
    let id = &run.spec.id;
    let target = &run.spec.target;
    match run.phase() {
        RunPhase::Pending | RunPhase::Running => {
            vec![format!("farrier logs -f {id}"), run.command("cancel")]
        }
        RunPhase::Succeeded => vec![target.show_command()],
        RunPhase::Canceled => vec![run.command("rerun"), target.show_command()],
        RunPhase::Failed => failed_commands(run),
    }
}

/// The commands that fit the fault, most useful first.
fn failed_commands(run: &Run) -> Vec<String> {
    // A child run is best resumed through its parent, which waits for it.
    let parent =
        run.spec.parent_run.iter().map(|parent| format!("farrier operation retry-step {parent}"));
    parent.chain(own_commands(run)).collect()
}

/// The one command that fits a failed run best.
pub fn next_command(run: &Run) -> Option<String> {
    match run.phase() {
        RunPhase::Failed => {
            // A command that only reads does not resolve the failure.
            let probes = |one: &String| one.contains(" logs ") || one.contains(" status ");
            failed_commands(run).into_iter().find(|one| !probes(one))
        }
        RunPhase::Pending | RunPhase::Running | RunPhase::Succeeded | RunPhase::Canceled => None,
    }
}

/// True if an active run has waited longer than normal, for the metric of stuck objects.
pub fn overdue(run: &Run, now: Timestamp) -> bool {
    waiting(run).is_some_and(|wait| now.since(wait.since) > wait.normal)
}
