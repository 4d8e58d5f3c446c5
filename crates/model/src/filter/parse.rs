//! Parses a filter. Every error shows the text with a caret under the character.

use super::{Filter, FilterField, FilterSubject, FilterTerm, MAX_FILTER, MAX_TERMS, MAX_VALUES};
use crate::access::Scope;
use crate::condition::ConditionType;
use crate::lifecycle::Lifecycle;
use crate::machine::view::{EffectiveState, LifecycleState};
use crate::node::Node;
use crate::plan::RunType;
use crate::power_shelf::PowerShelf;
use crate::rack::Rack;
use crate::refusal::{Reason, Refusal};
use crate::run::{RunPhase, Workflow};
use crate::site::Site;
use crate::switch::Switch;
use crate::target::{TargetId, TargetKind};
use crate::time::Timestamp;

/// The number of characters that an error shows on either side of the caret.
const SHOWN: usize = 40;

pub(super) fn parse(text: &str, subject: FilterSubject) -> Result<Filter, Refusal> {
    if text.len() > MAX_FILTER {
        let problem = format!("is {} bytes long", text.len());
        return Err(Refusal::invalid("filter", problem, format!("use at most {MAX_FILTER} bytes")));
    }
    let mut parser = Parser { text, at: 0, subject };
    parser.skip_space();
    let mut terms = Vec::new();
    if parser.rest().is_empty() {
        return Ok(Filter { terms, scope: Scope::Everything });
    }
    loop {
        if terms.len() == MAX_TERMS {
            return Err(parser.wrong(parser.at, format!("has more than {MAX_TERMS} terms")));
        }
        terms.push(parser.term()?);
        parser.skip_space();
        if parser.rest().is_empty() {
            return Ok(Filter { terms, scope: Scope::Everything });
        }
        let start = parser.at;
        if !parser.word().eq_ignore_ascii_case("AND") {
            return Err(parser.wrong(start, "expected AND or the end".into()));
        }
        parser.skip_space();
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    subject: FilterSubject,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Reads a bare word; it may be empty.
    fn word(&mut self) -> &'a str {
        let legal = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':');
        let rest = self.rest();
        let end = rest.find(|c| !legal(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn term(&mut self) -> Result<FilterTerm, Refusal> {
        let start = self.at;
        let name = self.word();
        let field = self.field(name, start)?;
        self.skip_space();
        if matches!(field, FilterField::Label(_)) && self.at_end_of_term() {
            return Ok(FilterTerm { field, negated: false, values: Vec::new() });
        }
        if field == FilterField::CreatedFrom {
            return self.time_term();
        }
        let negated = if self.eat("!=") {
            true
        } else if self.eat("=") {
            false
        } else {
            return self.membership(field);
        };
        self.skip_space();
        let values = vec![self.value(&field)?];
        Ok(FilterTerm { field, negated, values })
    }

    /// A comparison of a time: not before it, or before it.
    fn time_term(&mut self) -> Result<FilterTerm, Refusal> {
        let field = match (self.eat(">="), self.eat("<")) {
            (true, _) => FilterField::CreatedFrom,
            (false, true) => FilterField::CreatedBefore,
            (false, false) => return Err(self.wrong(self.at, "expected >= or <".into())),
        };
        self.skip_space();
        let start = self.at;
        let written = self.value(&field)?;
        match Timestamp::parse(&written) {
            Some(at) => {
                let values = vec![at.as_micros().to_string()];
                Ok(FilterTerm { field, negated: false, values })
            }
            None => {
                let message = "expected a time in UTC, as 2026-01-31T12:00:00Z or 2026-01-31";
                Err(self.wrong(start, message.into()))
            }
        }
    }

    fn at_end_of_term(&self) -> bool {
        let next = self.rest().split_whitespace().next();
        next.is_none_or(|word| word.eq_ignore_ascii_case("and"))
    }

    /// `in (…)` or `not in (…)`.
    fn membership(&mut self, field: FilterField) -> Result<FilterTerm, Refusal> {
        let start = self.at;
        let mut name = self.word();
        let negated = name.eq_ignore_ascii_case("not");
        if negated {
            self.skip_space();
            name = self.word();
        }
        if !name.eq_ignore_ascii_case("in") {
            return Err(self.wrong(start, "expected =, != or in (…)".into()));
        }
        self.skip_space();
        if !self.eat("(") {
            return Err(self.wrong(self.at, "expected ( after in".into()));
        }
        let mut values = Vec::new();
        loop {
            self.skip_space();
            if values.len() == MAX_VALUES {
                return Err(self.wrong(self.at, format!("more than {MAX_VALUES} values")));
            }
            values.push(self.value(&field)?);
            self.skip_space();
            if self.eat(")") {
                return Ok(FilterTerm { field, negated, values });
            }
            if !self.eat(",") {
                return Err(self.wrong(self.at, "expected , or )".into()));
            }
        }
    }

    /// Reads a bare word or a quoted text, and converts it to the compared form.
    fn value(&mut self, field: &FilterField) -> Result<String, Refusal> {
        let start = self.at;
        let value = if self.eat("\"") { self.quoted(start)? } else { self.word().to_string() };
        if value.is_empty() && self.at == start {
            return Err(self.wrong(start, "expected a value".into()));
        }
        if value.chars().any(char::is_control) {
            return Err(self.wrong(start, "the value has a control character in it".into()));
        }
        match canonical(self.subject, field, &value) {
            Ok(value) => Ok(value),
            Err(words) => {
                Err(self.wrong(start, format!("{value:?} is none of {}", words.join(", "))))
            }
        }
    }

    fn quoted(&mut self, start: usize) -> Result<String, Refusal> {
        let mut value = String::new();
        let mut escaped = false;
        for (offset, c) in self.rest().char_indices() {
            match (escaped, c) {
                (false, '"') => {
                    self.at += offset + 1;
                    return Ok(value);
                }
                (false, '\\') => escaped = true,
                (_, c) => {
                    value.push(c);
                    escaped = false;
                }
            }
        }
        Err(self.wrong(start, "the quote is never closed".into()))
    }

    fn field(&self, name: &str, start: usize) -> Result<FilterField, Refusal> {
        let known = match (self.subject, name) {
            (FilterSubject::Machine | FilterSubject::Run, "machine_id") => {
                Some(FilterField::MachineId)
            }
            (FilterSubject::Machine, "phase") => Some(FilterField::Phase),
            (FilterSubject::Run, "phase") => Some(FilterField::RunPhase),
            (FilterSubject::Run, "machine_phase") => Some(FilterField::Phase),
            (FilterSubject::Machine | FilterSubject::Run, "effective_state") => {
                Some(FilterField::EffectiveState)
            }
            (FilterSubject::Machine | FilterSubject::Run, "lifecycle_state") => {
                Some(FilterField::LifecycleState)
            }
            (FilterSubject::Machine | FilterSubject::Run, "provider") => {
                Some(FilterField::Provider)
            }
            (FilterSubject::Machine | FilterSubject::Run, "rack_id" | "rack") => {
                Some(FilterField::Rack)
            }
            (FilterSubject::Run, "target_id") => Some(FilterField::MachineId),
            (FilterSubject::Run, "target_kind") => Some(FilterField::TargetKind),
            (FilterSubject::Run, "initiator") => Some(FilterField::Initiator),
            (FilterSubject::Run, "part_of") => Some(FilterField::PartOf),
            (FilterSubject::Run, "created_at") => Some(FilterField::CreatedFrom),
            (FilterSubject::Run | FilterSubject::Plan, "type") => Some(FilterField::Type),
            (FilterSubject::Run, "run_id" | "operation_id") => Some(FilterField::RunId),
            (FilterSubject::Run | FilterSubject::Plan, "plan_id") => Some(FilterField::PlanId),
            (FilterSubject::Run, "request_id") => Some(FilterField::RequestId),
            (FilterSubject::Run, "workflow_state") => Some(FilterField::WorkflowState),
            (FilterSubject::Machine | FilterSubject::Run, name) => self.dotted(name, start)?,
            (FilterSubject::Selector, name) => label_field(name),
            (FilterSubject::Notice, name) => label_field(name).or_else(|| self.named_field(name)),
            (FilterSubject::Plan, _) => None,
            (
                FilterSubject::Rack
                | FilterSubject::Switch
                | FilterSubject::PowerShelf
                | FilterSubject::Node
                | FilterSubject::Site,
                name,
            ) => record_field(self.subject, name),
            (
                FilterSubject::Health
                | FilterSubject::Firmware
                | FilterSubject::FirmwareHistory
                | FilterSubject::Image
                | FilterSubject::Credential
                | FilterSubject::Identity
                | FilterSubject::History
                | FilterSubject::Replica
                | FilterSubject::SimFault
                | FilterSubject::SimEffect
                | FilterSubject::ComponentFirmware,
                name,
            ) => self.named_field(name),
        };
        known.ok_or_else(|| {
            let shown: String = name.chars().take(SHOWN).collect();
            let fields = fields(self.subject).join(", ");
            self.wrong(start, format!("{shown:?} is not a field; the fields are {fields}"))
        })
    }

    fn named_field(&self, name: &str) -> Option<FilterField> {
        let mut fields = self.subject.named_fields().iter();
        fields.find(|one| one.name == name).map(|one| FilterField::Named(one.name))
    }

    fn dotted(&self, name: &str, start: usize) -> Result<Option<FilterField>, Refusal> {
        match name.split_once('.') {
            Some(("labels", key)) if !key.is_empty() => {
                Ok(Some(FilterField::Label(key.to_string())))
            }
            Some(("condition", name)) => match ConditionType::parse(name) {
                Some(condition) => Ok(Some(FilterField::Condition(condition))),
                None => {
                    let words: Vec<_> =
                        ConditionType::ALL.iter().map(|condition| condition.as_str()).collect();
                    let at = start + "condition.".len();
                    let said = format!("{name:?} is none of {}", words.join(", "));
                    Err(self.wrong(at, said))
                }
            },
            Some(_) | None => Ok(None),
        }
    }

    fn wrong(&self, at: usize, message: String) -> Refusal {
        let before: Vec<char> = self.text[..at].chars().collect();
        let from = before.len().saturating_sub(SHOWN);
        let lead: String = before[from..].iter().map(|&c| visible(c)).collect();
        let tail: String = self.text[at..].chars().take(SHOWN).map(visible).collect();
        let caret = " ".repeat(before.len() - from);
        let position = before.len() + 1;
        let problem =
            format!("is wrong at character {position}: {message}\n  {lead}{tail}\n  {caret}^");
        Refusal {
            field: Some("filter".into()),
            ..Refusal::new(Reason::FilterInvalid, format!("filter {problem}"))
        }
    }
}

fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

fn fields(subject: FilterSubject) -> Vec<&'static str> {
    let fields: &[&str] = match subject {
        FilterSubject::Machine => &[
            "machine_id",
            "phase",
            "effective_state",
            "lifecycle_state",
            "provider",
            "rack_id",
            "labels.KEY",
            "condition.TYPE",
        ],
        FilterSubject::Run => &[
            "operation_id",
            "target_id",
            "target_kind",
            "machine_id",
            "type",
            "phase",
            "workflow_state",
            "plan_id",
            "request_id",
            "initiator",
            "part_of",
            "created_at",
            "machine_phase",
            "effective_state",
            "lifecycle_state",
            "provider",
            "rack_id",
            "labels.KEY",
            "condition.TYPE",
        ],
        FilterSubject::Plan => &["plan_id", "type"],
        FilterSubject::Rack => &["rack_id", "state", "hardware_type", "labels.KEY"],
        FilterSubject::Switch => &["switch_id", "state", "rack_id", "labels.KEY"],
        FilterSubject::PowerShelf => &["power_shelf_id", "state", "rack_id", "labels.KEY"],
        FilterSubject::Node => &["node_id", "state", "machine_id", "site_id", "labels.KEY"],
        FilterSubject::Site => &["site_id", "state", "labels.KEY"],
        FilterSubject::Selector | FilterSubject::Notice => &["labels.KEY"],
        FilterSubject::Health
        | FilterSubject::Firmware
        | FilterSubject::FirmwareHistory
        | FilterSubject::Image
        | FilterSubject::Credential
        | FilterSubject::Identity
        | FilterSubject::History
        | FilterSubject::Replica
        | FilterSubject::SimFault
        | FilterSubject::SimEffect
        | FilterSubject::ComponentFirmware => &[],
    };
    fields.iter().copied().chain(subject.named_fields().iter().map(|one| one.name)).collect()
}

/// The label that `labels.KEY` names.
fn label_field(name: &str) -> Option<FilterField> {
    let key = name.strip_prefix("labels.").filter(|key| !key.is_empty())?;
    Some(FilterField::Label(key.to_string()))
}

/// The field of a record with this name.
fn record_field(subject: FilterSubject, name: &str) -> Option<FilterField> {
    let device = matches!(subject, FilterSubject::Switch | FilterSubject::PowerShelf);
    let (rack, node) = (subject == FilterSubject::Rack, subject == FilterSubject::Node);
    match name {
        "state" => Some(FilterField::State),
        "rack_id" | "rack" if device => Some(FilterField::Rack),
        "hardware_type" if rack => Some(FilterField::HardwareType),
        "machine_id" if node => Some(FilterField::MachineId),
        "site_id" if node => Some(FilterField::Site),
        name if fields(subject).first() == Some(&name) => Some(FilterField::RecordId),
        name => label_field(name),
    }
}

/// The names of the states of a record.
const fn states(subject: FilterSubject) -> &'static [&'static str] {
    match subject {
        FilterSubject::Rack => Rack::STATES,
        FilterSubject::Switch => Switch::STATES,
        FilterSubject::PowerShelf => PowerShelf::STATES,
        FilterSubject::Node => Node::STATES,
        FilterSubject::Site => Site::STATES,
        FilterSubject::Machine
        | FilterSubject::Run
        | FilterSubject::Plan
        | FilterSubject::Selector
        | FilterSubject::Health
        | FilterSubject::Firmware
        | FilterSubject::FirmwareHistory
        | FilterSubject::Image
        | FilterSubject::Credential
        | FilterSubject::Identity
        | FilterSubject::History
        | FilterSubject::Replica
        | FilterSubject::SimFault
        | FilterSubject::SimEffect
        | FilterSubject::ComponentFirmware
        | FilterSubject::Notice => &[],
    }
}

/// The compared form of a value, or the list of valid values.
fn canonical(
    subject: FilterSubject,
    field: &FilterField,
    value: &str,
) -> Result<String, Vec<&'static str>> {
    let among = |words: Vec<&'static str>| {
        let found = words.iter().find(|word| word.eq_ignore_ascii_case(value));
        found.map(|word| word.to_string()).ok_or(words)
    };
    match field {
        // The lifecycle states contain the phases.
        FilterField::Phase | FilterField::LifecycleState => {
            among(LifecycleState::ALL.iter().map(|state| state.as_str()).collect())
        }
        FilterField::RunPhase => among(RunPhase::ALL.iter().map(|phase| phase.as_str()).collect()),
        FilterField::EffectiveState => {
            among(EffectiveState::ALL.iter().map(|state| state.as_str()).collect())
        }
        FilterField::WorkflowState => {
            among(Workflow::ALL.iter().map(|state| state.as_str()).collect())
        }
        FilterField::State => among(states(subject).to_vec()),
        FilterField::Condition(_) => among(vec!["true", "false"]),
        FilterField::Type => match RunType::parse(&value.to_ascii_uppercase()) {
            Some(kind) => Ok(kind.as_str().into()),
            None => Err(RunType::ALL.iter().map(|kind| kind.as_str()).collect()),
        },
        FilterField::Named(name) => {
            let mut fields = subject.named_fields().iter();
            match fields.find(|one| one.name == *name).map(|one| one.values) {
                None | Some([]) => Ok(value.to_string()),
                Some(words) => among(words.to_vec()),
            }
        }
        FilterField::TargetKind => {
            among(TargetKind::ALL.iter().map(|kind| kind.as_str()).collect())
        }
        // Runs store their target with its kind, which the prefix of the id tells.
        FilterField::MachineId if subject == FilterSubject::Run => {
            Ok(TargetId::parse(value).map_or_else(|_| value.to_string(), |target| target.key()))
        }
        FilterField::MachineId
        | FilterField::Provider
        | FilterField::Rack
        | FilterField::Label(_)
        | FilterField::RunId
        | FilterField::PlanId
        | FilterField::RequestId
        | FilterField::Initiator
        | FilterField::PartOf
        | FilterField::CreatedFrom
        | FilterField::CreatedBefore
        | FilterField::RecordId
        | FilterField::HardwareType
        | FilterField::Site => Ok(value.to_string()),
    }
}
