//! Farrier's decisions, as pure functions.
//!
//! This crate decides which requests are admitted, what a run does next, what a provider's answer
//! means, and what an operator is told. Every decision is a total function over values. Nothing
//! here does I/O, reads a clock or awaits: the time is a parameter, and `engine` carries decisions
//! out. Therefore tests can be tables and exhaustive walks over all states.

pub mod access;
pub mod address_range;
pub mod approval;
pub mod audit;
pub mod blast_radius;
pub mod component;
pub mod condition;
pub mod credential;
pub mod deploy;
pub mod device;
pub mod effect;
pub mod fault;
pub mod filter;
pub mod firmware;
pub mod gate;
pub mod health;
pub mod host;
pub mod id;
pub mod image;
pub mod known_as;
pub mod lifecycle;
pub mod list_format;
pub mod machine;
pub mod node;
pub mod notify;
pub mod order;
pub mod password_mask;
pub mod placement;
pub mod plan;
pub mod power_shelf;
pub mod rack;
pub mod refusal;
pub mod retry;
pub mod run;
pub mod site;
pub mod switch;
pub mod target;
pub mod text;
pub mod time;
pub mod version;
pub mod why;

/// The module and line of the code that took a decision, for the history.
#[macro_export]
macro_rules! here {
    () => {
        concat!(module_path!(), ":", line!())
    };
}

/// A [`run::HistoryNote`] with a formatted message and the place of this call.
#[macro_export]
macro_rules! note {
    ($($message:tt)*) => {
        $crate::run::HistoryNote::new(format!($($message)*), $crate::here!())
    };
}
