//! What an operation takes from budgets, and whether they allow it.

use super::{Budget, MaxUnavailable, Unavailability};
use crate::gate::{Overrides, budget_word};
use crate::id::{BudgetId, MachineId};
use crate::list_format::join_limited;
use crate::refusal::{Reason, Refusal};

/// The number of unavailable machines that a message names; the rest is counted.
pub const MAX_NAMED: usize = 8;

/// A machine that does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableMachine {
    pub machine: MachineId,
    pub why: Unavailability,
}

/// The state of one domain of a budget, and what an operation would take from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetUse {
    pub budget: Budget,
    pub domain: String,
    pub total: u64,
    /// Those that are unavailable now.
    pub unavailable: u64,
    /// The number of machines that serve, and that the operation would take.
    pub takes: u64,
    /// Some of the unavailable machines.
    pub named: Vec<UnavailableMachine>,
}

impl BudgetUse {
    pub const fn allowed(&self) -> u64 {
        self.budget.max_unavailable.of(self.total)
    }

    /// How many more may become unavailable after the operation.
    pub const fn left(&self) -> u64 {
        self.allowed().saturating_sub(self.unavailable + self.takes)
    }

    /// Whether the operation would take the budget past its limit. One that takes nothing never
    /// does.
    pub const fn is_exceeded(&self) -> bool {
        self.takes > 0 && self.unavailable + self.takes > self.allowed()
    }

    /// The name of the budget and the domain.
    pub fn name(&self) -> String {
        format!("{}{}", self.budget.id, self.budget.per.describe(&self.domain))
    }

    /// Where the budget stands: `3 of 3 allowed unavailable of 61: m-1 (op-1), m-2 (unreachable)`.
    fn describe(&self) -> String {
        let (allowed, total) = (self.allowed(), self.total);
        let rounded = match self.budget.max_unavailable {
            percent @ MaxUnavailable::Percent(_) if allowed == 0 => {
                format!(", because {percent} of {total} rounds down to 0")
            }
            MaxUnavailable::Percent(_) | MaxUnavailable::Count(_) => String::new(),
        };
        let stands = format!("{} of {allowed} allowed unavailable of {total}", self.unavailable);
        let named: Vec<String> =
            self.named.iter().map(|one| format!("{} ({})", one.machine, one.why)).collect();
        let more = usize::try_from(self.unavailable).unwrap_or(usize::MAX);
        let users = match more.saturating_sub(named.len()) {
            0 => named.join(", "),
            more => format!("{}, and {more} more", named.join(", ")),
        };
        match named.is_empty() {
            true => format!("{stands}{rounded}"),
            false => format!("{stands}{rounded}: {users}"),
        }
    }
}

const fn machines(count: u64) -> &'static str {
    if count == 1 { "machine" } else { "machines" }
}

/// The refusal by the budgets that an operation would exceed and that its override does not name;
/// none if there is no such budget.
pub fn refuse(what: &str, uses: &[BudgetUse], overrides: &Overrides) -> Option<Refusal> {
    let refuses =
        |one: &&BudgetUse| one.is_exceeded() && !overrides.budgets().contains(&one.budget.id);
    let refusing: Vec<&BudgetUse> = uses.iter().filter(refuses).collect();
    let first = refusing.first()?;
    let said = |one: &&BudgetUse| {
        let takes = one.takes;
        format!("{takes} {} from budget {}, {}", machines(takes), one.name(), one.describe())
    };
    let said: Vec<String> = refusing.iter().map(said).collect();
    let message = format!("{what} would take {}", join_limited(&said, "; ", MAX_NAMED));
    let with = refusing.iter().fold(overrides.clone(), |all, one| all.and_budget(&one.budget.id));
    let (id, domain) = (&first.budget.id, &first.domain);
    let next = format!("farrier budget get {id}   # or repeat it with {}", with.flags());
    Some(Refusal::new(Reason::BudgetExhausted, message).at_budget(id, domain).next(next))
}

/// For a dry run and for the history: one sentence for each budget from which something is taken,
/// or which the override names.
pub fn describe_uses(uses: &[BudgetUse], overrides: &Overrides) -> Vec<String> {
    let taken = uses.iter().filter(|one| one.takes > 0).map(|one| {
        let (takes, name, left, allowed) = (one.takes, one.name(), one.left(), one.allowed());
        let passed = match (one.is_exceeded(), overrides.budgets().contains(&one.budget.id)) {
            (true, true) => "; it refuses, and the override passes it",
            (false, true) => "; the override names it, and it does not refuse",
            (true, false) => "; it refuses",
            (false, false) => "",
        };
        let now = one.unavailable;
        format!(
            "budget {name}: takes {takes} {}, {now} of {allowed} allowed are unavailable now, \
             {left} would be left{passed}",
            machines(takes)
        )
    });
    let unused = overrides
        .budgets()
        .iter()
        .filter(|id| !uses.iter().any(|one| one.takes > 0 && one.budget.id == **id));
    let unused = unused
        .map(|id| format!("budget {id} is named by the override, and nothing is taken from it"));
    taken.chain(unused).collect()
}

/// What the history records about the budgets that the override names; empty if it names none.
pub fn history_notes(uses: &[BudgetUse], overrides: &Overrides, by: &str) -> String {
    let reason = overrides.reason();
    let note = |id: &BudgetId| {
        let word = budget_word(id);
        match uses.iter().any(|one| one.budget.id == *id && one.is_exceeded()) {
            true => format!("gate {word} overridden by {by}: {reason}"),
            false => format!("gate {word} named by {by}, and it did not refuse: {reason}"),
        }
    };
    overrides.budgets().iter().map(note).collect::<Vec<_>>().join("; ")
}
