//! Health reports: alerts from external monitors, and what Farrier does not do because of them.
//!
//! Any monitor may report on a machine, switch, power shelf or rack under its own name, the source.
//! A report is a set of alerts by id. A source merges into, replaces or removes only its own
//! report. [`HealthSummary`] summarizes what all reports of an object prevent. It is stored with
//! the object, so a gate needs no second query.

use crate::filter::{Filter, FilterValues};
use crate::gate::{Gate, OR_REPEAT, Overrides};
use crate::refusal::{Reason, Refusal};
use crate::target::TargetId;
use crate::text;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The number of sources that may report on one object.
pub const MAX_SOURCES: usize = 16;
/// The number of alerts in one report.
pub const MAX_ALERTS: usize = 32;
/// The number of classifications of one alert.
pub const MAX_CLASSES: usize = 8;

/// The classifications that Farrier acts on. Any other word is stored and shown, but has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlertClass {
    /// Nothing new is placed on the object: it does not leave maintenance, join a cluster, or get
    /// its node uncordoned.
    PreventAllocations,
    /// No new operation starts on the object.
    PreventStateChanges,
    /// The alert is counted separately from those that page an operator.
    SuppressExternalAlerting,
}

impl AlertClass {
    pub const ALL: [Self; 3] =
        [Self::PreventAllocations, Self::PreventStateChanges, Self::SuppressExternalAlerting];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreventAllocations => "prevent-allocations",
            Self::PreventStateChanges => "prevent-state-changes",
            Self::SuppressExternalAlerting => "suppress-external-alerting",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// The component that the alert is about; empty means the whole object.
    #[serde(default)]
    #[serde(rename = "part")]
    pub component: String,
    pub message: String,
    #[serde(default)]
    pub classes: BTreeSet<String>,
    /// The time when the problem began.
    pub since: Timestamp,
}

impl Alert {
    pub fn is(&self, class: AlertClass) -> bool {
        self.classes.contains(class.as_str())
    }

    /// The same alert reported again keeps its earliest `since`.
    fn again(&self, known: Option<&Self>) -> Self {
        let since = known.map_or(self.since, |known| known.since.min(self.since));
        Self { since, ..self.clone() }
    }
}

pub type Alerts = BTreeMap<String, Alert>;

/// The alerts of one source about an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HealthReport {
    pub alerts: Alerts,
    /// The time when the report last changed.
    #[serde(default)]
    pub updated_at: Timestamp,
}

impl HealthReport {
    pub fn new(alerts: impl IntoIterator<Item = (String, Alert)>) -> Self {
        Self { alerts: alerts.into_iter().collect(), updated_at: Timestamp::default() }
    }

    /// The alert counts for the metrics.
    pub fn tally(&self) -> AlertCounts {
        let mut tally = AlertCounts::default();
        for alert in self.alerts.values() {
            let (places, changes) = (
                alert.is(AlertClass::PreventAllocations),
                alert.is(AlertClass::PreventStateChanges),
            );
            if alert.is(AlertClass::SuppressExternalAlerting) {
                tally.suppressed += 1;
                continue;
            }
            tally.prevent_allocations += i64::from(places);
            tally.prevent_state_changes += i64::from(changes);
            tally.other += i64::from(!places && !changes);
        }
        tally
    }
}

/// Alert counts by kind, for the metrics. An alert that prevents two things counts for both; a
/// suppressed alert counts only as suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AlertCounts {
    pub prevent_allocations: i64,
    pub prevent_state_changes: i64,
    pub other: i64,
    pub suppressed: i64,
}

/// All reports on an object, by source.
pub type Reports = BTreeMap<String, HealthReport>;

/// A change of a source's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportChange {
    /// Adds these alerts, replacing those with the same ids; the others stay.
    Merge(Alerts),
    /// The report becomes exactly these alerts.
    Replace(Alerts),
    /// Removes these alerts; an empty set removes all.
    Remove(BTreeSet<String>),
}

impl ReportChange {
    /// Checks every field from the client.
    pub fn checked(self) -> Result<Self, Refusal> {
        match &self {
            Self::Merge(alerts) | Self::Replace(alerts) => check_alerts(alerts)?,
            Self::Remove(ids) => ids.iter().try_for_each(|id| text::check_name("alert_ids", id))?,
        }
        Ok(self)
    }

    /// The message for the object's history.
    pub fn said(&self, source: &str) -> String {
        let list = |alerts: &Alerts| {
            let message: Vec<String> =
                alerts.iter().map(|(id, alert)| format!("{id}: {}", alert.message)).collect();
            message.join("; ")
        };
        match self {
            Self::Merge(alerts) => format!("{source} reports {}", list(alerts)),
            Self::Replace(alerts) if alerts.is_empty() => {
                format!("{source} reports no alerts any more")
            }
            Self::Replace(alerts) => format!("{source} reports {}, and nothing else", list(alerts)),
            Self::Remove(ids) if ids.is_empty() => format!("the report of {source} is removed"),
            Self::Remove(ids) => {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                format!("{source} takes back {}", ids.join(", "))
            }
        }
    }
}

/// Checks the name of a source.
pub fn source(field: &str, value: &str) -> Result<String, Refusal> {
    text::check_name(field, value)?;
    Ok(value.to_string())
}

fn check_alerts(alerts: &Alerts) -> Result<(), Refusal> {
    too_many("alerts", alerts.len(), MAX_ALERTS)?;
    for (id, alert) in alerts {
        text::check_name("alerts.id", id)?;
        let field = |name: &str| format!("alerts[{id}].{name}");
        text::check_short(&field("target"), &alert.component)?;
        text::check_reason(&field("message"), &alert.message)?;
        let classes = field("classifications");
        too_many(&classes, alert.classes.len(), MAX_CLASSES)?;
        alert.classes.iter().try_for_each(|class| text::check_name(&classes, class))?;
    }
    Ok(())
}

fn too_many(field: &str, count: usize, most: usize) -> Result<(), Refusal> {
    match count > most {
        false => Ok(()),
        true => {
            let problem = format!("has {count} entries");
            Err(Refusal::invalid(field, problem, format!("give at most {most}")))
        }
    }
}

/// The reports on an object after one change. A report without alerts is removed.
pub fn apply(
    known: &Reports,
    source: &str,
    change: &ReportChange,
    now: Timestamp,
) -> Result<Reports, Refusal> {
    let before = known.get(source).map(|report| report.alerts.clone()).unwrap_or_default();
    let again = |alerts: &Alerts| -> Alerts {
        alerts.iter().map(|(id, alert)| (id.clone(), alert.again(before.get(id)))).collect()
    };
    let after = match change {
        ReportChange::Merge(alerts) => {
            let mut merged = before.clone();
            merged.extend(again(alerts));
            merged
        }
        ReportChange::Replace(alerts) => again(alerts),
        ReportChange::Remove(ids) if ids.is_empty() => Alerts::new(),
        ReportChange::Remove(ids) => {
            let mut left = before.clone();
            left.retain(|id, _| !ids.contains(id));
            left
        }
    };
    too_many("alerts", after.len(), MAX_ALERTS)?;
    let mut reports = known.clone();
    match (after.is_empty(), after == before) {
        (_, true) => return Ok(reports),
        (true, false) => drop(reports.remove(source)),
        (false, false) => {
            reports.insert(source.into(), HealthReport { alerts: after, updated_at: now });
        }
    }
    match reports.len() > MAX_SOURCES {
        false => Ok(reports),
        true => Err(Refusal::invalid(
            "source",
            format!("{source:?} would be one more than the {MAX_SOURCES} that may report on it"),
            "remove the report of a source that is not in use any more",
        )),
    }
}

/// The alert that prevents something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockingAlert {
    pub source: String,
    pub alert: String,
    pub message: String,
}

/// The summary of all reports on an object, reduced to what a gate needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthSummary {
    /// The number of alerts of all sources.
    pub alerts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "allocations")]
    pub allocations_blocked_by: Option<BlockingAlert>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_changes: Option<BlockingAlert>,
}

/// The impact of a request on the object, for the health gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthImpact {
    /// It changes the object.
    Change,
    /// It changes the object and finally lets new workloads onto it.
    PlaceWorkloads,
}

impl HealthSummary {
    pub fn of(reports: &Reports) -> Self {
        let alerts: usize = reports.values().map(|report| report.alerts.len()).sum();
        Self {
            alerts: u32::try_from(alerts).unwrap_or(u32::MAX),
            allocations_blocked_by: first(reports, AlertClass::PreventAllocations),
            state_changes: first(reports, AlertClass::PreventStateChanges),
        }
    }

    /// No source reports an alert.
    pub fn is_clear(&self) -> bool {
        *self == Self::default()
    }

    /// The prevented classes of requests, each with its alert.
    pub fn blocking_alerts(&self) -> Vec<(AlertClass, &BlockingAlert)> {
        let all = [
            (AlertClass::PreventStateChanges, &self.state_changes),
            (AlertClass::PreventAllocations, &self.allocations_blocked_by),
        ];
        all.into_iter().filter_map(|(class, bar)| Some((class, bar.as_ref()?))).collect()
    }

    /// The alerts as sentences for `farrier why`.
    pub fn messages(&self) -> Vec<String> {
        let bars = self.blocking_alerts();
        let mut message: Vec<String> = bars
            .iter()
            .map(|(class, bar)| format!("{}: {}", prevented(*class), bar.said()))
            .collect();
        match (self.alerts, message.is_empty()) {
            (0, _) | (1, false) => {}
            (1, true) => message.push("1 alert is reported".into()),
            (count, _) => message.push(format!("{count} alerts are reported")),
        }
        message
    }

    /// The health gate. `what` names the request in the message.
    pub fn check_permitted(
        &self,
        target: &TargetId,
        what: &str,
        requested: HealthImpact,
        overrides: &Overrides,
    ) -> Result<(), Refusal> {
        let bar = match requested {
            HealthImpact::Change => self.state_changes.as_ref(),
            HealthImpact::PlaceWorkloads => {
                self.state_changes.as_ref().or(self.allocations_blocked_by.as_ref())
            }
        };
        match (bar, overrides.passes(Gate::Health)) {
            (None, _) | (Some(_), true) => Ok(()),
            (Some(bar), false) => {
                let message = format!("{what} is prevented on {target}: {}", bar.said());
                let flags = overrides.flags_with(Gate::Health);
                Err(Refusal::new(Reason::HealthPrevents, message)
                    .at_gate(Gate::Health)
                    .next(format!("farrier health get {target}{OR_REPEAT}{flags}")))
            }
        }
    }
}

impl BlockingAlert {
    fn said(&self) -> String {
        format!("{} reports {}: {}", self.source, self.alert, self.message)
    }
}

const fn prevented(class: AlertClass) -> &'static str {
    match class {
        AlertClass::PreventAllocations => "nothing new is placed on it",
        AlertClass::PreventStateChanges => "no operation starts on it",
        AlertClass::SuppressExternalAlerting => "it suppresses external alerting",
    }
}

/// The oldest alert of a class.
fn first(reports: &Reports, class: AlertClass) -> Option<BlockingAlert> {
    let all = reports.iter().flat_map(|(source, report)| {
        report.alerts.iter().map(move |(id, alert)| (alert.since, source, id, alert))
    });
    let oldest = all
        .filter(|(_, _, _, alert)| alert.is(class))
        .min_by_key(|(since, source, id, _)| (*since, *source, *id));
    oldest.map(|(_, source, id, alert)| BlockingAlert {
        source: source.clone(),
        alert: id.clone(),
        message: alert.message.clone(),
    })
}

/// True if the object has an alert that matches the whole filter. An object without alerts never
/// matches.
pub fn has_matching_alert(filter: &Filter, object: &TargetId, reports: &Reports) -> bool {
    let alerts = reports.iter().flat_map(|(source, report)| {
        report.alerts.iter().map(move |(id, alert)| FilteredAlert { object, source, id, alert })
    });
    alerts.into_iter().any(|alert| filter.matches_values(&alert))
}

/// One alert with what a filter of alerts compares.
struct FilteredAlert<'a> {
    object: &'a TargetId,
    source: &'a str,
    id: &'a str,
    alert: &'a Alert,
}

impl FilterValues for FilteredAlert<'_> {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "id" => vec![self.object.id.clone()],
            "kind" => vec![self.object.kind.as_str().into()],
            "source" => vec![self.source.into()],
            "classification" => self.alert.classes.iter().cloned().collect(),
            "alert" => vec![self.id.into()],
            "target" => vec![self.alert.component.clone()],
            _ => Vec::new(),
        }
    }
}
