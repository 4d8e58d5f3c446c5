//! Tests that need a browser or thousands of connections, and print figures. `cargo xtask soak`
//! runs them one after the other. `cargo test` excludes this program.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

#[path = "../cli/api.rs"]
#[allow(dead_code)]
mod api;
mod browser;
#[path = "../cli/fleet.rs"]
#[allow(dead_code)]
mod fleet;
mod load;
#[path = "../cli/stage.rs"]
#[allow(dead_code)]
mod stage;
