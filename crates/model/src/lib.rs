//! What is true and what may follow.
//!
//! Everything Farrier decides is decided here, by total functions over values: which requests are
//! admitted, what a run does next, what an answer from the hardware means, what to tell a person.
//! Nothing here does I/O, reads a clock or awaits: the time is a parameter, and acting is for
//! `engine`. That is what lets tables and exhaustive walks stand as tests.

pub mod blast;
pub mod component;
pub mod condition;
pub mod deploy;
pub mod device;
pub mod effect;
pub mod fault;
pub mod filter;
pub mod firmware;
pub mod health;
pub mod host;
pub mod id;
pub mod image;
pub mod lifecycle;
pub mod machine;
pub mod node;
pub mod plan;
pub mod power_shelf;
pub mod rack;
pub mod refusal;
pub mod retry;
pub mod run;
pub mod say;
pub mod site;
pub mod sweep;
pub mod switch;
pub mod target;
pub mod text;
pub mod time;
pub mod why;

/// The line of code that took a decision, for the history.
#[macro_export]
macro_rules! here {
    () => {
        concat!(module_path!(), ":", line!())
    };
}
