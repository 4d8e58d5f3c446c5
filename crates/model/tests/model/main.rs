//! The model as tables and exhaustive walks: what a run may do from every reachable state.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod act;
mod adopt;
mod aftermath;
mod devices;
mod explore;
mod host;
mod invariants;
mod nodes;
mod pages;
mod racks;
mod states;
mod stored;
mod support;
mod walk;
mod why;
