//! The store suite: the same tests on both databases.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

#[macro_use]
mod harness;

mod approvals;
mod bus;
mod claims;
mod dry_run;
mod events;
mod feeds;
mod filters;
mod firmware;
mod health;
mod inspections;
mod landed;
mod logs;
mod machines;
mod nodes;
mod notifiers;
mod opening;
mod orders;
mod paging;
mod plans;
mod provider_state;
mod records;
mod replicas;
mod retention;
mod runs;
mod settling;
mod side_facts;
mod snapshots;
mod symptoms;
mod unreadable;
mod unreadable_filters;
mod writer;
