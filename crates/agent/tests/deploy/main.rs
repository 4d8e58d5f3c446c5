//! The deploy agent against a scripted server that breaks connections, refuses, sends wrong data
//! and restarts.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod binary;
mod environment;
mod faults;
mod loop_devices;
mod outcomes;
mod qemu;
mod server;
mod tar_images;
#[path = "../wire/mod.rs"]
mod wire;
