//! Real machines as far as software can be one: `cargo xtask test-vm` brings up virtual machines behind Redfish emulators
//! and runs these tests among them, one after the other. Without it there is nothing to test, so `cargo test` leaves this
//! program out.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

#[path = "../cli/fleet.rs"]
#[allow(dead_code)]
mod fleet;
mod netboot;
mod reimage;
mod site;
#[path = "../cli/stage.rs"]
#[allow(dead_code)]
mod stage;
