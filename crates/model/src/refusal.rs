//! Refusals: why a request was not admitted.
//!
//! A refusal names the field or the obstacle and says what to type instead. A refused request
//! writes nothing. Clients can tell the kinds apart; `server` maps each kind to one gRPC code.

use crate::gate::{Gate, OR_REPEAT, budget_word};
use crate::id::BudgetId;
use crate::time::Timestamp;
use crate::window::StartRuleId;
use std::fmt;

mod reason;
pub use reason::Reason;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// A field is missing or malformed.
    Invalid,
    NotFound,
    /// The request is valid, but the current state does not allow it.
    Precondition,
    /// The same name already denotes something else.
    Exists,
    /// The requested data existed and has been deleted by retention.
    Gone,
    /// The caller is not known.
    Unauthenticated,
    /// The caller is known and may not do this.
    Denied,
    /// A limit of the server is reached.
    Exhausted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The stable code that programs compare.
    pub reason: Reason,
    pub message: String,
    /// The field at fault, for `Invalid`, and for something that a request names and is not known.
    pub field: Option<String>,
    /// The command to type next.
    pub next_command: Option<String>,
    /// The gate that refuses, if it can be overridden.
    pub gate: Option<Gate>,
    /// The first budget that refuses, if the gate is [`Gate::Budget`].
    pub budget: Option<Box<BudgetId>>,
    /// The first window or freeze that refuses.
    pub rule: Option<Box<RefusingRule>>,
    /// The approval that the request waits for.
    pub approval: Option<Box<ApprovalRef>>,
}

/// An approval, and the request id with which its request is to be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRef {
    pub id: String,
    /// Empty: the request had none.
    pub request_id: String,
}

/// A window or a freeze that refuses, and when it lets operations start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusingRule {
    pub id: StartRuleId,
    pub opens_at: Option<Timestamp>,
}

/// A refused request, as it is remembered for the people who ask about its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRequest {
    pub at: Timestamp,
    pub by: String,
    /// The name of the request, such as `ReimageMachine`.
    pub request: String,
    /// The word of the reason.
    pub reason: String,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            reason,
            message: text.into(),
            field: None,
            next_command: None,
            gate: None,
            budget: None,
            rule: None,
            approval: None,
        }
    }

    pub const fn kind(&self) -> RefusalKind {
        self.reason.kind()
    }

    pub fn missing(field: &str) -> Self {
        Self {
            field: Some(field.to_string()),
            ..Self::new(Reason::FieldMissing, format!("{field} is required"))
        }
    }

    /// The message is `field` + `problem`, then what to do instead.
    pub fn invalid(field: &str, problem: impl fmt::Display, instead: impl fmt::Display) -> Self {
        Self {
            field: Some(field.to_string()),
            ..Self::new(Reason::FieldInvalid, format!("{field} {problem}; {instead}"))
        }
    }

    pub fn not_found(noun: &str, id: impl fmt::Display, next: &str) -> Self {
        let id: String = id.to_string().chars().take(64).collect();
        Self::new(Reason::NotFound, format!("no {noun} {id} is known")).next(next)
    }

    /// Names the field of the request that is at fault, where the object itself is known.
    #[must_use]
    pub fn of_field(mut self, field: &str) -> Self {
        self.field = Some(field.to_string());
        self
    }

    /// Names the gate that refuses, in the message too.
    #[must_use]
    pub fn at_gate(mut self, gate: Gate) -> Self {
        self.message = format!("{} (gate {gate})", self.message);
        self.gate = Some(gate);
        self
    }

    /// Names the budget that refuses, in the message too.
    #[must_use]
    pub fn at_budget(mut self, budget: &BudgetId) -> Self {
        self.message = format!("{} (gate {})", self.message, budget_word(budget));
        (self.gate, self.budget) = (Some(Gate::Budget), Some(Box::new(budget.clone())));
        self
    }

    /// Names the window or the freeze that refuses, in the message too.
    #[must_use]
    pub fn at_rule(mut self, rule: RefusingRule) -> Self {
        self.message = format!("{} (gate {})", self.message, rule.id);
        (self.gate, self.rule) = (Some(rule.id.kind.gate()), Some(Box::new(rule)));
        self
    }

    /// The gate that refuses as `--override` takes it.
    pub fn gate_word(&self) -> Option<String> {
        match (&self.budget, &self.rule) {
            (Some(budget), _) => Some(budget_word(budget)),
            (None, Some(rule)) => Some(rule.id.to_string()),
            (None, None) => self.gate.map(|gate| gate.to_string()),
        }
    }

    /// Offers no override in the next command: another rule refuses the request too.
    #[must_use]
    pub fn without_override(mut self) -> Self {
        if let Some((command, _)) =
            self.next_command.iter().find_map(|next| next.split_once(OR_REPEAT))
        {
            self.next_command = Some(command.to_string());
        }
        self
    }

    #[must_use]
    pub fn next(mut self, command: impl Into<String>) -> Self {
        self.next_command = Some(command.into());
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
