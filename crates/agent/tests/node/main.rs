//! The real agent program of a node against a scripted, strict server: it is killed at every
//! request, stopped, kept waiting, and uninstalled; and its public modules by themselves.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod config;
mod enrollment;
mod environment;
mod server;
mod task_execution;
mod task_kinds;
mod timing;
mod uninstall;
#[path = "../wire/mod.rs"]
mod wire;
