//! Notifications: which changes are sent to systems outside, and how a delivery proceeds.
//!
//! A notifier is one receiver: a URL, a format, and the kinds of notices that it gets. [`notices`]
//! makes notices of a change, [`Delivery`] holds what became of the attempts to send the next one.

mod delivery;
mod notice;

pub use delivery::{AfterFailure, DeadLetter, Delivery, NoticeOutcome, SendFailure, after_failure};
pub use notice::{
    Before, Change, MAX_SUMMARY, Notice, NoticeEvent, ObjectFacts, Severity, Snapshot,
    needs_before, notices,
};

use crate::filter::{Filter, FilterSubject};
use crate::refusal::{Reason, Refusal};
use crate::text;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The number of notifiers of one installation. Each has a connection and a batch of events.
pub const MAX_NOTIFIERS: i64 = 100;
/// The attempts to send a notice when a request names no number: about half an hour.
pub const DEFAULT_ATTEMPTS: u32 = 12;
pub const MAX_ATTEMPTS: u32 = 100;
/// The CloudEvents source when a request names none.
pub const DEFAULT_SOURCE: &str = "/farrier";
/// The place of the secret in a URL.
pub const URL_SECRET: &str = "{secret}";

/// The kind of notice that a notifier can get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeKind {
    OperationFailed,
    /// An object needs a person, or no longer does.
    NeedsPerson,
}

impl NoticeKind {
    pub const ALL: [Self; 2] = [Self::OperationFailed, Self::NeedsPerson];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OperationFailed => "operation-failed",
            Self::NeedsPerson => "needs-person",
        }
    }
}

/// The form of the requests that a receiver understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotifyFormat {
    /// CloudEvents 1.0 in structured mode, signed with HMAC-SHA256.
    CloudEvents,
    /// An incoming webhook of Slack. Its URL has the secret in it.
    Slack,
    /// The Events API v2 of PagerDuty. The secret is the routing key.
    PagerDuty,
}

impl NotifyFormat {
    pub const ALL: [Self; 3] = [Self::CloudEvents, Self::Slack, Self::PagerDuty];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CloudEvents => "cloudevents",
            Self::Slack => "slack",
            Self::PagerDuty => "pagerduty",
        }
    }

    /// True if the secret is a part of the URL.
    const fn has_secret_url(self) -> bool {
        match self {
            Self::Slack => true,
            Self::CloudEvents | Self::PagerDuty => false,
        }
    }
}

/// The description of a notifier by its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifierSpec {
    pub url: String,
    /// The name of the credential that holds the secret.
    pub credential: String,
    pub format: NotifyFormat,
    pub kinds: BTreeSet<NoticeKind>,
    /// Empty: every notice of these kinds.
    pub filter: String,
    /// The source of the events, which tells several installations apart.
    pub source: String,
    /// A notice that failed this often becomes a dead letter.
    pub max_attempts: u32,
}

impl NotifierSpec {
    /// Checks every field, and sets those that have a default.
    pub fn checked(mut self) -> Result<Self, Refusal> {
        check_url(&self.url, self.format)?;
        text::check_name("notifier.credential", &self.credential)?;
        if self.kinds.is_empty() {
            return Err(Refusal::missing("notifier.kinds"));
        }
        Self::parse_filter(&self.filter)?;
        if self.source.is_empty() {
            self.source = DEFAULT_SOURCE.into();
        }
        text::check_short("notifier.source", &self.source)?;
        if !self.source.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = format!("is {:?}, which is no URI reference", self.source);
            return Err(Refusal::invalid("notifier.source", problem, "write /site-a or a URL"));
        }
        match self.max_attempts {
            0 => self.max_attempts = DEFAULT_ATTEMPTS,
            1..=MAX_ATTEMPTS => {}
            more => {
                let instead = format!("use at most {MAX_ATTEMPTS}");
                let problem = format!("is {more}");
                return Err(Refusal::invalid("notifier.max_attempts", problem, instead));
            }
        }
        Ok(self)
    }

    pub fn parse_filter(text: &str) -> Result<Filter, Refusal> {
        Filter::parse(text, FilterSubject::Notice)
    }
}

fn check_url(url: &str, format: NotifyFormat) -> Result<(), Refusal> {
    const FIELD: &str = "notifier.url";
    text::check_web_url(FIELD, url)?;
    if url.contains('#') {
        return Err(Refusal::invalid(FIELD, "has a fragment", "leave out the part after #"));
    }
    match (format.has_secret_url(), url.matches(URL_SECRET).count()) {
        (true, 1) | (false, 0) => Ok(()),
        (true, _) => {
            let problem = format!("does not have {URL_SECRET} once");
            let instead = "write https://hooks.slack.com/services/{secret} and put the rest of the \
                           URL into the credential";
            Err(Refusal::invalid(FIELD, problem, instead))
        }
        (false, _) => {
            let problem = format!("has {URL_SECRET} in it");
            let instead = format!("the format {} sends no secret in the URL", format.as_str());
            Err(Refusal::invalid(FIELD, problem, instead))
        }
    }
}

/// A receiver of notices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notifier {
    pub name: String,
    pub spec: NotifierSpec,
    pub paused: bool,
    /// Raised by every change of the owner.
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub delivery: Delivery,
}

impl Notifier {
    pub fn new(name: &str, spec: NotifierSpec, now: Timestamp) -> Self {
        Self {
            name: name.into(),
            spec,
            paused: false,
            version: 1,
            created_at: now,
            updated_at: now,
            delivery: Delivery::default(),
        }
    }
}

pub fn no_notifier(name: &str) -> Refusal {
    Refusal::not_found("notifier", name, "farrier notify list")
}

pub fn notifier_exists(name: &str) -> Refusal {
    Refusal::new(Reason::NotifierExists, format!("the notifier {name} exists with other settings"))
        .next(format!("farrier notify update {name} …"))
}

/// Refuses a notifier beyond the limit. `count`: those that there are.
pub fn check_room(count: i64) -> Result<(), Refusal> {
    if count < MAX_NOTIFIERS {
        return Ok(());
    }
    let message = format!("there are {count} notifiers, the most that one installation may have");
    Err(Refusal::new(Reason::TooManyNotifiers, message).next("farrier notify list"))
}
