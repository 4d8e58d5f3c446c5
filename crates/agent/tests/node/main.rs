//! The agent of a node, as the real program, against a Farrier that is scripted and strict: it is killed at every request, told to stop, kept
//! waiting, and told to go.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod becoming;
mod kinds;
mod leaving;
mod lives;
mod server;
mod stage;
#[path = "../wire/mod.rs"]
mod wire;
