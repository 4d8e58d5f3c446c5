//! The agent against a Farrier that is scripted: it breaks off, refuses, lies and comes back.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod binary;
mod faults;
mod loops;
mod qemu;
mod server;
mod stage;
mod tars;
mod verdicts;
#[path = "../wire/mod.rs"]
mod wire;
