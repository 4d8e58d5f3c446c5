//! Tests on virtual machines: `cargo xtask test-vm` starts virtual machines behind Redfish
//! emulators and runs these tests one after the other. `cargo test` excludes this program, because
//! it needs that environment.

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
