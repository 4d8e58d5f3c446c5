//! Approvals: requests of certain classes need a second person.
//!
//! The policy names the classes, which are permissions. A request of such a class is refused and
//! leaves an [`Approval`] that waits for another person. The approval is bound to the requester, to
//! the request id and to the digest of what the request would do. [`judge`] decides in the
//! transaction of the request whether one covers it. An administrator can go past the gate; that
//! leaves a record too, which waits for the review of another person.

use crate::access::{AuthMethod, Permission, PermissionSet, Principal};
use crate::gate::{Gate, Overrides};
use crate::id::{ApprovalId, RunId};
use crate::refusal::{ApprovalRef, Reason, Refusal};
use crate::time::{Timestamp, format_duration};
use std::time::Duration;

/// The number of approvals of one requester that may wait at once.
pub const MAX_PENDING: i64 = 50;
/// The number of earlier approvals of a request that [`judge`] is given.
pub const MAX_EARLIER: i64 = 20;
/// The number of lines of a plan that are stored and shown. The digest covers all of them.
pub const MAX_PLAN_LINES: usize = 400;
/// The number of characters of a changed line that a refusal shows.
const MAX_SHOWN: usize = 160;
const DEFAULT_LIFETIME: Duration = Duration::from_secs(3_600);
const MIN_LIFETIME: Duration = Duration::from_secs(60);
const MAX_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

/// The permissions that runs need: the classes that a policy may name.
pub const CLASSES: PermissionSet = PermissionSet::of(&[
    Permission::Operate,
    Permission::Destroy,
    Permission::Power,
    Permission::Firmware,
    Permission::Execute,
]);

/// The rules that say which requests need a second person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApprovalPolicy {
    /// Empty: none.
    pub classes: PermissionSet,
    /// Time that a request waits for its approval, and that the approval is then valid.
    pub lifetime: Duration,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self { classes: PermissionSet::EMPTY, lifetime: DEFAULT_LIFETIME }
    }
}

impl ApprovalPolicy {
    /// Checks a policy that a client has sent. No lifetime: the default.
    pub fn parse(classes: PermissionSet, lifetime: Option<Duration>) -> Result<Self, Refusal> {
        if let Some(other) = classes.iter().find(|one| !CLASSES.contains(*one)) {
            let problem = format!("has {other}, which no operation needs");
            let instead = format!("name some of: {}", join(CLASSES));
            return Err(Refusal::invalid("permissions", problem, instead));
        }
        let lifetime = lifetime.unwrap_or(DEFAULT_LIFETIME);
        if !(MIN_LIFETIME..=MAX_LIFETIME).contains(&lifetime) {
            let problem = format!("is {} s", lifetime.as_secs());
            return Err(Refusal::invalid("lifetime_seconds", problem, "give 1 minute to 7 days"));
        }
        Ok(Self { classes, lifetime })
    }

    /// The classes of a request with these permissions that need a second person.
    #[must_use]
    pub const fn needed(&self, permissions: PermissionSet) -> PermissionSet {
        self.classes.intersection(permissions)
    }
}

/// The words of permissions, separated by commas.
pub fn join(permissions: PermissionSet) -> String {
    permissions.iter().map(Permission::as_str).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApprovalState {
    /// It waits for a second person.
    Pending,
    /// The same request starts the operation now.
    Approved,
    Denied,
    /// The operation was started with it.
    Used,
    /// It was not approved, or not used, in time.
    Expired,
    /// An administrator started the operation without an approval. It waits for a review.
    BreakGlass,
    /// Another person has reviewed the break-glass.
    Reviewed,
}

impl ApprovalState {
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Approved,
        Self::Denied,
        Self::Used,
        Self::Expired,
        Self::BreakGlass,
        Self::Reviewed,
    ];
    /// The states that wait for a person.
    pub const OPEN: [Self; 3] = [Self::Pending, Self::Approved, Self::BreakGlass];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Used => "used",
            Self::Expired => "expired",
            Self::BreakGlass => "break-glass",
            Self::Reviewed => "reviewed",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

/// Actions of a request, in the form that another person approves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The word of the request, such as `REIMAGE`.
    pub request: String,
    /// Empty: the client gave none.
    pub request_id: String,
    pub targets: Vec<String>,
    /// All permissions that the request needs.
    pub permissions: PermissionSet,
    /// Everything that the request would do, line by line: parameters, steps, devices.
    pub plan: Vec<String>,
    /// The hash of the request, its targets and its plan.
    pub digest: String,
    pub overrides: Overrides,
    /// The operations that the request starts.
    pub operations: Vec<RunId>,
}

/// The text that the digest of a proposal is the hash of. Each part has its length, so no two
/// proposals have the same text.
pub fn digested_text(request: &str, targets: &[String], plan: &[String]) -> String {
    let parts = [request].into_iter().chain(targets.iter().chain(plan).map(String::as_str));
    parts.map(|part| format!("{}:{part}\n", part.len())).collect()
}

/// A request that needs or needed a second person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    pub id: ApprovalId,
    /// The user who made the request.
    pub requester: String,
    pub request: String,
    pub request_id: String,
    pub targets: Vec<String>,
    pub permissions: PermissionSet,
    /// At most [`MAX_PLAN_LINES`] lines.
    pub plan: Vec<String>,
    pub digest: String,
    /// The stored state; see [`Approval::state`].
    pub stored: ApprovalState,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// The user who approved, denied or reviewed it. Empty: none yet.
    pub decided_by: String,
    pub decided_at: Option<Timestamp>,
    /// Comment of that user on the decision.
    pub comment: String,
    /// The reason of a break-glass.
    pub reason: String,
    /// The operations that were started with it.
    pub operations: Vec<String>,
}

/// Decision of a person about an approval, with the person's permissions and comment.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a> {
    pub by: &'a Principal,
    pub granted: PermissionSet,
    pub comment: &'a str,
    pub lifetime: Duration,
    pub now: Timestamp,
}

impl Approval {
    /// A new record of a proposal.
    pub fn new(
        id: ApprovalId,
        requester: &str,
        proposal: &Proposal,
        (now, lifetime): (Timestamp, Duration),
    ) -> Self {
        let mut plan = proposal.plan.clone();
        if plan.len() > MAX_PLAN_LINES {
            let left_out = plan.len() - MAX_PLAN_LINES + 1;
            plan.truncate(MAX_PLAN_LINES - 1);
            plan.push(format!("and {left_out} more lines, which the hash covers"));
        }
        Self {
            id,
            requester: requester.into(),
            request: proposal.request.clone(),
            request_id: proposal.request_id.clone(),
            targets: proposal.targets.clone(),
            permissions: proposal.permissions,
            plan,
            digest: proposal.digest.clone(),
            stored: ApprovalState::Pending,
            created_at: now,
            expires_at: now + lifetime,
            decided_by: String::new(),
            decided_at: None,
            comment: String::new(),
            reason: String::new(),
            operations: Vec::new(),
        }
    }

    /// A record of a request that went past the gate.
    #[must_use]
    pub fn break_glass(self, proposal: &Proposal) -> Self {
        Self {
            stored: ApprovalState::BreakGlass,
            reason: proposal.overrides.reason().into(),
            operations: proposal.operations.iter().map(RunId::to_string).collect(),
            ..self
        }
    }

    /// The state now. A break-glass waits for its review as long as it takes.
    pub fn state(&self, now: Timestamp) -> ApprovalState {
        let expires = matches!(self.stored, ApprovalState::Pending | ApprovalState::Approved);
        match expires && self.expires_at <= now {
            true => ApprovalState::Expired,
            false => self.stored,
        }
    }

    /// The same record after its approval, or after the review of a break-glass. A repetition by
    /// the same user changes nothing.
    pub fn grant(&self, decision: Decision<'_>) -> Result<Self, Refusal> {
        self.check_second_person(&decision)?;
        let repeated = self.decided_by == decision.by.user;
        let (stored, expires_at) = match self.state(decision.now) {
            ApprovalState::Pending => (ApprovalState::Approved, decision.now + decision.lifetime),
            ApprovalState::BreakGlass => (ApprovalState::Reviewed, self.expires_at),
            ApprovalState::Approved | ApprovalState::Reviewed if repeated => {
                return Ok(self.clone());
            }
            closed @ (ApprovalState::Approved
            | ApprovalState::Denied
            | ApprovalState::Used
            | ApprovalState::Expired
            | ApprovalState::Reviewed) => return Err(self.closed(closed)),
        };
        Ok(Self { stored, expires_at, ..self.decided(decision) })
    }

    /// The same record after it was denied, or withdrawn by its requester. An approval that was
    /// not used can be taken back.
    pub fn deny(&self, decision: Decision<'_>) -> Result<Self, Refusal> {
        if decision.by.user != self.requester {
            self.check_second_person(&decision)?;
        }
        match self.state(decision.now) {
            ApprovalState::Pending | ApprovalState::Approved => {
                Ok(Self { stored: ApprovalState::Denied, ..self.decided(decision) })
            }
            ApprovalState::Denied if self.decided_by == decision.by.user => Ok(self.clone()),
            closed @ (ApprovalState::Denied
            | ApprovalState::Used
            | ApprovalState::Expired
            | ApprovalState::BreakGlass
            | ApprovalState::Reviewed) => Err(self.closed(closed)),
        }
    }

    fn decided(&self, decision: Decision<'_>) -> Self {
        Self {
            decided_by: decision.by.user.clone(),
            decided_at: Some(decision.now),
            comment: decision.comment.into(),
            ..self.clone()
        }
    }

    /// Another user than the requester, who may do the same. Another token of the same user is the
    /// same person, and the server itself is none.
    fn check_second_person(&self, decision: &Decision<'_>) -> Result<(), Refusal> {
        let Decision { by, granted, .. } = decision;
        let id = &self.id;
        if by.method == AuthMethod::Internal || by.user == self.requester {
            let message = format!("{} asked for {id}, and needs another person for it", by.user);
            return Err(Refusal::new(Reason::SecondPersonRequired, message)
                .next(format!("farrier approval get {id}   # and send the id to a colleague")));
        }
        let what = format!("deciding about {id}");
        let mut needed = self.permissions.iter();
        needed.try_for_each(|one| crate::access::check_permission(by, *granted, one, &what))
    }

    fn closed(&self, state: ApprovalState) -> Refusal {
        let id = &self.id;
        let by = match self.decided_by.as_str() {
            "" => String::new(),
            user => format!(", decided by {user}"),
        };
        let message = format!("{id} is {} already{by}", state.as_str());
        Refusal::new(Reason::ApprovalClosed, message).next(format!("farrier approval get {id}"))
    }

    /// The request in a few words, such as `REIMAGE on r1-m01`.
    pub fn describe(&self) -> String {
        describe(&self.request, &self.targets)
    }

    /// The refusal of a request that waits for this approval.
    pub fn required(&self, changed: Option<&str>) -> Refusal {
        let (id, what) = (&self.id, self.describe());
        let changed = changed.map(|text| format!("; {text}")).unwrap_or_default();
        let message = format!("{what} needs the approval of a second person: {id}{changed}");
        let next = format!("farrier approve {id}   # another person; {}", self.repetition());
        self.refuse(Reason::ApprovalRequired, message).next(next)
    }

    fn repetition(&self) -> String {
        match self.request_id.as_str() {
            "" => "then repeat the request".into(),
            id => format!("then repeat the request with --request-id {id}"),
        }
    }

    fn refuse(&self, reason: Reason, message: String) -> Refusal {
        let reference =
            ApprovalRef { id: self.id.to_string(), request_id: self.request_id.clone() };
        Refusal {
            approval: Some(Box::new(reference)),
            ..Refusal::new(reason, message).at_gate(Gate::Approval)
        }
    }

    fn other_request_id(&self) -> Refusal {
        let message = format!(
            "{} approved {} for {}, under the request id {:?}",
            self.decided_by,
            self.describe(),
            self.id,
            self.request_id
        );
        let next = format!("farrier approval get {}   # {}", self.id, self.repetition());
        self.refuse(Reason::ApprovalRequired, message).next(next)
    }

    fn denied(&self) -> Refusal {
        let Self { id, decided_by, comment, .. } = self;
        let comment = if comment.is_empty() { String::new() } else { format!(": {comment}") };
        let message = format!("{decided_by} denied {} ({id}){comment}", self.describe());
        let next = format!("farrier approval get {id}   # a new --request-id asks again");
        self.refuse(Reason::ApprovalDenied, message).next(next)
    }
}

/// A request and its targets in a few words.
pub fn describe(request: &str, targets: &[String]) -> String {
    match targets {
        [] => request.to_string(),
        [one] => format!("{request} on {one}"),
        [first, others @ ..] => format!("{request} on {first} and {} others", others.len()),
    }
}

/// The refusal of one request too many.
pub fn too_many_pending(requester: &str) -> Refusal {
    let message =
        format!("{MAX_PENDING} requests of {requester} wait for an approval, which is the limit");
    Refusal::new(Reason::TooManyApprovals, message).next("farrier approval list")
}

/// Verdict on a request, given the approvals that its requester has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalVerdict {
    /// This approval covers it, and is used up by it.
    Use(Box<Approval>),
    /// It is refused; nothing is to be written.
    Refuse(Refusal),
    /// A new approval is needed. The text says what became of an earlier one.
    Request(Option<String>),
}

/// Decides whether an approval covers a request. `found` are the newest approvals of its requester
/// with the same digest or the same request id, the newest first.
pub fn judge(found: &[Approval], proposal: &Proposal, now: Timestamp) -> ApprovalVerdict {
    let same_id = |one: &&Approval| one.request_id == proposal.request_id;
    let same: Vec<&Approval> = found.iter().filter(|one| one.digest == proposal.digest).collect();
    let in_state = |state: ApprovalState| {
        same.iter().copied().filter(move |one| one.state(now) == state).collect::<Vec<_>>()
    };
    let approved = in_state(ApprovalState::Approved);
    if let Some(one) = approved.iter().copied().find(same_id) {
        return ApprovalVerdict::Use(Box::new(one.clone()));
    }
    if let Some(one) = approved.first() {
        return ApprovalVerdict::Refuse(one.other_request_id());
    }
    if let Some(one) = in_state(ApprovalState::Pending).first() {
        return ApprovalVerdict::Refuse(one.required(None));
    }
    if let Some(one) = in_state(ApprovalState::Denied).into_iter().find(same_id) {
        return ApprovalVerdict::Refuse(one.denied());
    }
    let earlier = found.iter().filter(|_| !proposal.request_id.is_empty()).find(same_id);
    ApprovalVerdict::Request(earlier.and_then(|one| describe_earlier(one, proposal, now)))
}

/// The reason why an earlier approval of the same request id does not cover a request.
fn describe_earlier(earlier: &Approval, proposal: &Proposal, now: Timestamp) -> Option<String> {
    let id = &earlier.id;
    match earlier.state(now) {
        ApprovalState::Expired => {
            let ago = format_duration(now.since(earlier.expires_at));
            Some(format!("{id} expired {ago} ago"))
        }
        ApprovalState::Pending | ApprovalState::Approved | ApprovalState::Denied => {
            let change = describe_change(earlier, proposal);
            Some(format!("{id} was for something else: {change}"))
        }
        ApprovalState::Used | ApprovalState::BreakGlass | ApprovalState::Reviewed => None,
    }
}

/// The first difference between what was approved and what is requested.
fn describe_change(earlier: &Approval, proposal: &Proposal) -> String {
    let what = describe(&proposal.request, &proposal.targets);
    if earlier.describe() != what {
        return format!("it was {}, and is {what}", earlier.describe());
    }
    let shown = |line: &String| -> String { line.chars().take(MAX_SHOWN).collect() };
    let gone = earlier.plan.iter().find(|line| !proposal.plan.contains(line)).map(shown);
    let new = proposal.plan.iter().find(|line| !earlier.plan.contains(line)).map(shown);
    match (gone, new) {
        (Some(gone), Some(new)) => format!("it was [{gone}], and is [{new}]"),
        (Some(gone), None) => format!("it no longer has [{gone}]"),
        (None, Some(new)) => format!("it also has [{new}]"),
        (None, None) => "its steps have another order".into(),
    }
}

/// The sentence of a dry run about the gate.
pub fn describe_gate(needed: PermissionSet, overrides: &Overrides) -> Option<String> {
    match (needed.is_empty(), overrides.passes(Gate::Approval)) {
        (true, false) => None,
        (true, true) => {
            Some("gate approval is named by the override, and does not refuse it".into())
        }
        (false, true) => Some(
            "gate approval refuses it, and the override passes it: every administrator sees that"
                .into(),
        ),
        (false, false) => Some(format!(
            "gate approval: the request needs the approval of a second person ({}); it answers with the id for `farrier approve`",
            join(needed)
        )),
    }
}
