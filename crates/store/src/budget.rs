//! Disruption budgets: their records, their members, and the machines that operations take.
//!
//! The members of a budget are a table, and so is what takes a machine. The transaction that
//! changes a machine, its node or a take notes it in [`ServiceChanges`]; before it commits,
//! [`Tx::keep_budget_members`] brings the members up to date. So admission only counts an index.
//! `model::budget` decides which machine is a member, and whether it serves.

mod members;
mod record;

pub(crate) use members::ServiceChanges;
pub use members::{BudgetMember, DomainCount};
