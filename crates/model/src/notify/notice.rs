//! Notices: the changes of objects that are worth a message to a person.

use super::NoticeKind;
use crate::condition::ConditionType;
use crate::filter::FilterValues;
use crate::lifecycle::{Lifecycle, SubjectKind};
use crate::machine::view::EffectiveState;
use crate::machine::{Labels, Machine};
use crate::node::{Node, NodeWork};
use crate::rack::{Rack, RackState};
use crate::run::Run;
use crate::site::SiteState;
use crate::time::Timestamp;
use crate::why::{Urgency, possible_damage, rank_machine, rank_node, rank_rack};
use serde::{Deserialize, Serialize};

/// The length limit of a summary, in characters; PagerDuty takes 1,024.
pub const MAX_SUMMARY: usize = 1_000;
/// The state of switches and power shelves that a person must resolve.
const IN_ERROR: &str = "Error";

/// The type of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeEvent {
    OperationFailed,
    PersonNeeded,
    PersonNoLongerNeeded,
    /// Sent by an operator, to try a notifier.
    Test,
}

impl NoticeEvent {
    pub const ALL: [Self; 4] =
        [Self::OperationFailed, Self::PersonNeeded, Self::PersonNoLongerNeeded, Self::Test];

    const fn word(self) -> &'static str {
        match self {
            Self::OperationFailed => "operation-failed",
            Self::PersonNeeded => "person-needed",
            Self::PersonNoLongerNeeded => "person-no-longer-needed",
            Self::Test => "test",
        }
    }

    /// The type of the CloudEvent, which filters take too.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OperationFailed => "farrier.operation.failed",
            Self::PersonNeeded => "farrier.person.needed",
            Self::PersonNoLongerNeeded => "farrier.person.no-longer-needed",
            Self::Test => "farrier.notifier.test",
        }
    }
}

/// How urgent a notice is, in the words of PagerDuty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Critical,
    Error,
    Warning,
    Info,
}

impl Severity {
    pub const ALL: [Self; 4] = [Self::Critical, Self::Error, Self::Warning, Self::Info];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }

    const fn of(urgency: Urgency) -> Self {
        match urgency {
            Urgency::MayBeDamaged => Self::Critical,
            Urgency::Stopped | Urgency::OutOfService => Self::Error,
            Urgency::Overdue | Urgency::Degraded => Self::Warning,
        }
    }
}

/// A message about a change. The formats are made of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The same for every attempt and every receiver, so that a receiver can drop repeats.
    pub id: String,
    pub event: NoticeEvent,
    pub at: Timestamp,
    /// `operation`, `machine`, `rack` and so on.
    pub kind: String,
    /// The object that the notice is about.
    pub object: String,
    pub severity: Severity,
    pub summary: String,
    /// The state of the object after the change.
    pub state: String,
    /// The code of the fault of an operation; empty for others.
    pub fault: String,
    /// The machine or device of an operation; empty for others.
    pub target: String,
    /// The command that explains the object.
    pub command: String,
    pub rack: String,
    pub labels: Labels,
}

impl Notice {
    /// The notice with which an operator tries a notifier. `id` is new each time.
    pub fn test(notifier: &str, id: &str, now: Timestamp) -> Self {
        Self {
            id: format!("{id}:{}", NoticeEvent::Test.word()),
            event: NoticeEvent::Test,
            at: now,
            kind: "notifier".into(),
            object: notifier.into(),
            severity: Severity::Info,
            summary: format!("a test of the notifier {notifier}: nothing has happened"),
            state: String::new(),
            fault: String::new(),
            target: String::new(),
            command: format!("farrier notify get {notifier}"),
            rack: String::new(),
            labels: Labels::new(),
        }
    }
}

impl FilterValues for Notice {
    fn values_of(&self, field: &str) -> Vec<String> {
        let value = match field {
            "type" => self.event.as_str(),
            "severity" => self.severity.as_str(),
            "kind" => &self.kind,
            "id" => &self.object,
            "target_id" => &self.target,
            "rack_id" => &self.rack,
            "fault" => &self.fault,
            _ => "",
        };
        if value.is_empty() { Vec::new() } else { vec![value.to_string()] }
    }

    fn label(&self, key: &str) -> Option<&String> {
        self.labels.get(key)
    }
}

/// An object at one version.
#[derive(Debug, Clone, Copy)]
pub enum Snapshot<'a> {
    Run(&'a Run),
    Machine(&'a Machine),
    Rack(&'a Rack),
    Node(&'a Node),
    /// A record of which the event has the state only.
    Record(SubjectKind, &'a str),
}

/// An object before a change.
#[derive(Debug, Clone, Copy)]
pub enum Before<'a> {
    Absent,
    /// Its event has expired.
    Unknown,
    Known(Snapshot<'a>),
}

/// Facts that a notice has and the event has not: those of the machine of an operation or a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectFacts {
    pub rack: String,
    pub labels: Labels,
}

/// The change of one object.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    pub object: &'a str,
    pub version: i64,
    pub at: Timestamp,
    pub before: Before<'a>,
    /// None: it was deleted.
    pub after: Option<Snapshot<'a>>,
}

/// The need of an object for a person.
struct Need {
    urgency: Urgency,
    why: String,
}

/// True if the notices of a change depend on the object before it. Most changes of operations do
/// not, and that saves a read.
pub fn needs_before(after: Option<Snapshot<'_>>) -> bool {
    match after {
        Some(Snapshot::Run(run)) => is_reported_failure(run),
        Some(
            Snapshot::Machine(_) | Snapshot::Rack(_) | Snapshot::Node(_) | Snapshot::Record(..),
        )
        | None => true,
    }
}

/// The notices of a change, of every kind, in the order in which they are sent.
pub fn notices(change: &Change<'_>, facts: &ObjectFacts) -> Vec<(NoticeKind, Notice)> {
    let failed = operation_failed(change, facts).map(|one| (NoticeKind::OperationFailed, one));
    let person = person_needed(change, facts).map(|one| (NoticeKind::NeedsPerson, one));
    failed.into_iter().chain(person).collect()
}

/// A child run reports through its parent.
fn is_reported_failure(run: &Run) -> bool {
    run.progress.workflow.failed() && run.spec.parent_run.is_none()
}

fn operation_failed(change: &Change<'_>, facts: &ObjectFacts) -> Option<Notice> {
    let Some(Snapshot::Run(run)) = change.after else { return None };
    if !is_reported_failure(run) {
        return None;
    }
    if let Before::Known(Snapshot::Run(before)) = change.before
        && before.progress.workflow.failed()
    {
        return None;
    }
    let (words, target) = (run.spec.run_type.as_str(), &run.spec.target);
    let (why, fault) = match &run.progress.failure {
        Some(failure) => {
            (format!(": {}: {}", failure.step, failure.fault.message), failure.fault.code.as_str())
        }
        None => (String::new(), ""),
    };
    let severity = match possible_damage(run) {
        Some(_) => Severity::Critical,
        None => Severity::Error,
    };
    Some(Notice {
        severity,
        state: run.progress.workflow.as_str().into(),
        fault: fault.into(),
        target: target.to_string(),
        ..notice(
            change,
            facts,
            NoticeEvent::OperationFailed,
            "operation",
            &format!("{words} of {target} failed{why}"),
        )
    })
}

/// An object that needs a person more urgently than before is reported again.
fn person_needed(change: &Change<'_>, facts: &ObjectFacts) -> Option<Notice> {
    let after = change.after.and_then(|after| need(after, change.at));
    let before = match change.before {
        Before::Known(before) => need(before, change.at),
        Before::Absent | Before::Unknown => None,
    };
    let any = match (change.after, change.before) {
        (Some(any), _) | (None, Before::Known(any)) => any,
        (None, Before::Absent | Before::Unknown) => return None,
    };
    let (kind, state) = kind_and_state(any);
    let object = change.object;
    let begun = match (&before, &after) {
        (None, None) => return None,
        (Some(before), Some(after)) if after.urgency >= before.urgency => return None,
        (_, Some(after)) => Some(after),
        (Some(_), None) => None,
    };
    let (event, severity, summary) = match begun {
        Some(Need { urgency, why }) => (
            NoticeEvent::PersonNeeded,
            Severity::of(*urgency),
            format!("{object} needs a person: {why}"),
        ),
        None => {
            let gone = if change.after.is_none() { ": it was deleted" } else { "" };
            let summary = format!("{object} needs no person any more{gone}");
            (NoticeEvent::PersonNoLongerNeeded, Severity::Info, summary)
        }
    };
    let state = if change.after.is_some() { state } else { "removed".into() };
    Some(Notice { severity, state, ..notice(change, facts, event, kind, &summary) })
}

fn notice(
    change: &Change<'_>,
    facts: &ObjectFacts,
    event: NoticeEvent,
    kind: &str,
    summary: &str,
) -> Notice {
    let object = change.object;
    Notice {
        // A signature separates the id by a dot, and no id of an object has a colon.
        id: format!("{}:{}:{}", object.replace('.', ":"), change.version, event.word()),
        event,
        at: change.at,
        kind: kind.into(),
        object: object.into(),
        severity: Severity::Info,
        summary: one_line(summary),
        state: String::new(),
        fault: String::new(),
        target: String::new(),
        command: format!("farrier why {object}"),
        rack: facts.rack.clone(),
        labels: facts.labels.clone(),
    }
}

fn one_line(text: &str) -> String {
    let plain = text.chars().map(|one| if one.is_control() { ' ' } else { one });
    plain.take(MAX_SUMMARY).collect()
}

fn kind_and_state(object: Snapshot<'_>) -> (&'static str, String) {
    match object {
        Snapshot::Run(run) => ("operation", run.progress.workflow.as_str().into()),
        Snapshot::Machine(machine) => ("machine", machine.effective_state().as_str().into()),
        Snapshot::Rack(rack) => (Rack::KIND.as_str(), rack.state_name().into()),
        Snapshot::Node(node) => (Node::KIND.as_str(), node.state_name().into()),
        Snapshot::Record(kind, state) => (kind.as_str(), state.into()),
    }
}

/// The need for a person that the object itself shows. What only becomes true by the passing of
/// time has no event, so it is in `farrier why` alone.
fn need(object: Snapshot<'_>, at: Timestamp) -> Option<Need> {
    let (rank, why) = match object {
        // A failed operation has a notice of its own.
        Snapshot::Run(_) => return None,
        Snapshot::Machine(machine) => (rank_machine(machine)?.urgency, machine_needs(machine)),
        Snapshot::Rack(rack) => {
            let why = match &rack.state {
                RackState::Error { cause } => cause.failure.message.clone(),
                RackState::Created
                | RackState::Discovering
                | RackState::Maintenance { .. }
                | RackState::Validating
                | RackState::Ready
                | RackState::Deleting => in_state(rack.state_name()),
            };
            (rank_rack(rack, at)?.urgency, why)
        }
        Snapshot::Node(node) => {
            (rank_node(node, NodeWork::Idle, at)?.urgency, in_state(node.state_name()))
        }
        Snapshot::Record(kind, state) => (record_urgency(kind, state)?, in_state(state)),
    };
    (rank != Urgency::Overdue).then_some(Need { urgency: rank, why })
}

fn in_state(state: &str) -> String {
    format!("it is in the state {state}")
}

fn machine_needs(machine: &Machine) -> String {
    let stopped = machine.conditions.get(ConditionType::NeedsIntervention);
    match (machine.effective_state(), stopped, machine.problem()) {
        (EffectiveState::Attention, Some(known), _) => known.reason.clone(),
        (_, _, Some(problem)) => problem.describe(),
        (state, _, None) => in_state(state.as_str()),
    }
}

/// The urgency of a record of which only the state is known.
fn record_urgency(kind: SubjectKind, state: &str) -> Option<Urgency> {
    match kind {
        SubjectKind::Switch | SubjectKind::PowerShelf => {
            (state == IN_ERROR).then_some(Urgency::Stopped)
        }
        SubjectKind::Site => [SiteState::Unreachable, SiteState::CutOff]
            .iter()
            .any(|lost| lost.as_str() == state)
            .then_some(Urgency::OutOfService),
        // The state of a host does not say whether its upgrade is tried again by itself; its failed
        // operation has a notice. The events of the others hold the whole object.
        SubjectKind::Host | SubjectKind::Rack | SubjectKind::Node => None,
    }
}
