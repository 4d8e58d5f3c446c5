//! The model as tables and exhaustive walks: what a run may do from every reachable state.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod act;
mod address_range;
mod adopt;
mod aftermath;
mod approval;
mod attention;
mod blast_radius;
mod busy;
mod component;
mod condition;
mod credential;
mod deploy;
mod device;
mod devices;
mod effect;
mod estimate;
mod explore;
mod fault;
mod filter;
mod firmware;
mod gate;
mod health;
mod host;
mod id;
mod image;
mod invariants;
mod known_as;
mod list_format;
mod machine;
mod nodes;
mod notify;
mod order;
mod outcomes;
mod pages;
mod placement;
mod plan;
mod power_topology;
mod rack;
mod racks;
mod retry;
mod states;
mod stored;
mod support;
mod target;
mod text;
mod time;
mod version;
mod waits;
mod walk;
mod why;
